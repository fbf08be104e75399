"""Compressed texts and Arrow files, as pandas and `datasets` write them."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rllib_dapo.data.load import load_problems
from rllib_dapo.errors import DataError

ROWS = [{"problem": "1+1", "answer": "2"}, {"problem": "1+2", "answer": "3"}]
LINES = "\n".join(map(json.dumps, ROWS))
TEXTS = {
    ".jsonl": LINES,
    ".ndjson": LINES,
    ".json": json.dumps(ROWS),
    ".csv": "problem,answer\n1+1,2\n1+2,3\n",
    ".tsv": "problem\tanswer\n1+1\t2\n1+2\t3\n",
}
OPENERS: dict[str, Callable[..., Any]] = {
    "": open, ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open,
}  # fmt: skip


@pytest.mark.parametrize("compression", OPENERS)
@pytest.mark.parametrize("suffix", TEXTS)
def test_texts_may_be_compressed(tmp_path: Path, suffix: str, compression: str) -> None:
    path = tmp_path / f"train{suffix}{compression}"
    with OPENERS[compression](path, "wt") as file:
        file.write(TEXTS[suffix])
    for place in (path, tmp_path):
        problems = load_problems(place)
        assert [(p.problem, p.answer) for p in problems] == [("1+1", "2"), ("1+2", "3")]


@pytest.mark.parametrize("write", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow_streams_and_files(tmp_path: Path, write: Callable[..., Any]) -> None:
    table = pa.Table.from_pylist(ROWS)
    path = tmp_path / "data-00000-of-00001.arrow"
    with pa.OSFile(str(path), "wb") as sink, write(sink, table.schema) as writer:
        writer.write_table(table)
    assert [p.answer for p in load_problems(path)] == ["2", "3"]


@pytest.mark.parametrize("kept", [2, 20, 60])
@pytest.mark.parametrize("compression", [".gz", ".bz2", ".xz"])
def test_a_compressed_file_that_breaks_off_is_named(
    tmp_path: Path, compression: str, kept: int
) -> None:
    path = tmp_path / f"train.jsonl{compression}"
    with OPENERS[compression](path, "wt") as file:
        file.write(LINES)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"train\.jsonl\."):
        load_problems(path)


def test_an_arrow_file_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.arrow"
    path.write_bytes(b"no arrow in here")
    with pytest.raises(DataError, match=r"train\.arrow: not a readable Arrow file"):
        load_problems(path)


def test_a_compressed_parquet_file_is_refused_with_the_forms_that_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet.gz"
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"cannot read '\.gz'; use \.jsonl"):
        load_problems(path)
