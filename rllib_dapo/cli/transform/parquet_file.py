"""Rows of a JSONL file as a Parquet file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

_ROWS_PER_GROUP = 10_000
_PROBLEMS = ("problem", "original_problem")


def jsonl_to_parquet(rows: Path, out: Path) -> None:
    """Write `rows` (objects of texts; problems may be chats) to `out`, all of it or nothing.

    Where some problems are chats, all are written as chats: a column has one type.
    """
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    chats = any(not isinstance(row["problem"], str) for row in _read(rows))
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    problem = pa.list_(message) if chats else pa.string()
    names = ("problem", "answer", "form", "method", "source", "original_problem", "original_answer")
    schema = pa.schema([(name, problem if name in _PROBLEMS else pa.string()) for name in names])
    temporary = out.with_name(out.name + ".new")
    reader = _read(rows)
    with pq.ParquetWriter(temporary, schema) as writer:
        while batch := list(islice(reader, _ROWS_PER_GROUP)):
            if chats:
                batch = [{**row, **{n: _as_chat(row[n]) for n in _PROBLEMS}} for row in batch]
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
    temporary.replace(out)


def _as_chat(problem: Any) -> Any:
    return [{"role": "user", "content": problem}] if isinstance(problem, str) else problem


def _read(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
