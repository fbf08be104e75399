"""The files of a transformation, written so that a killed run can continue.

During a run there is one file, `OUT.journal.jsonl`: its first line says what is transformed and
how, and each further line is the result of one row of the input, in the input's order. A run
that continues counts these lines and goes on with the next row. When all rows are there, OUT
and its sibling `*.rejected.jsonl` are written, each in one step, and a journal of one line stays
behind, which says that OUT is finished.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from rllib_dapo.errors import SettingError

REJECTED = "rejected"
SUFFIXES = (".jsonl", ".parquet")
_VERSION = 1
_ROWS_PER_GROUP = 10_000
COLUMNS = ("problem", "answer", "form", "method", "source", "original_problem", "original_answer")
"""The columns of OUT."""
_PROBLEMS = ("problem", "original_problem")


@dataclass(frozen=True, slots=True)
class TransformReport:
    """What became of a data set, earlier runs included.

    Attributes:
        counts: rows by `method/form` or `rejected/reason`.
        rows: rows of the input.
        rows_before: how many of them an earlier run had settled.
        out: the file of the accepted rows.
        rejected: the file of the rejected rows.
    """

    counts: Counter[str]
    rows: int
    rows_before: int
    out: Path
    rejected: Path


class Journal:
    """Keeps the result of each row, and makes OUT and `*.rejected.jsonl` of them at the end.

    Args:
        out: the output, `.jsonl` or `.parquet`.
        identity: what must be the same for a run to continue: the input's hash, the options.
        restart: discard what an earlier run left.

    Attributes:
        counts: the rows that are kept, by `method/form` or `rejected/reason`.
        finished: whether the outputs are written.

    Raises:
        SettingError: the output cannot be written, belongs to something else, or another
            process is writing it.
    """

    def __init__(self, out: Path, identity: Mapping[str, Any], *, restart: bool = False) -> None:
        if out.suffix.lower() not in SUFFIXES:
            raise SettingError(f"out={str(out)!r}: use a name that ends in {', '.join(SUFFIXES)}")
        self.out = out
        self.rejected = out.with_name(out.stem + ".rejected.jsonl")
        self.path = out.with_name(out.name + ".journal.jsonl")
        self._header: dict[str, Any] = {"version": _VERSION, "identity": dict(identity)}
        self.counts: Counter[str] = Counter()
        self.finished = False
        out.parent.mkdir(parents=True, exist_ok=True)
        if not restart and not self.path.exists():
            for path in (self.out, self.rejected):
                if path.exists():
                    raise self._error(
                        f"{path} exists and was not left by an unfinished run; choose another"
                        " name, or overwrite it with --restart"
                    )
        self._file = self._locked()
        try:
            if restart:
                self._file.truncate(0)
            self._resume()
        except BaseException:
            self._file.close()
            raise

    @property
    def rows_done(self) -> int:
        """The number of rows of the input whose results are kept."""
        return self.counts.total()

    def append(self, results: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Keep the results of the next rows.

        Args:
            results: for each row `method/form` or `rejected/reason`, and the row of the output.
        """
        self._write(results)
        self.counts.update(key for key, _ in results)

    def finish(self) -> None:
        """Write both outputs from the results, and mark them as finished."""
        write = _write_parquet if self.out.suffix.lower() == ".parquet" else _write_jsonl
        write(self.out, partial(self._rows, rejected=False))
        _write_jsonl(self.rejected, partial(self._rows, rejected=True))
        _write_jsonl(self.path, lambda: [{**self._header, "counts": dict(self.counts)}])
        self.finished = True

    def close(self) -> None:
        """Let other processes use the journal."""
        self._file.close()

    def _locked(self) -> BinaryIO:
        try:
            file = self.path.open("a+b")
        except OSError as error:
            raise self._error(f"{self.path} cannot be written ({error.strerror})") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise self._error(f"another process is writing {self.path}; let it finish") from error
        return file

    def _resume(self) -> None:
        """Read what an earlier run left, or begin the file."""
        self._file.seek(0)
        header: dict[str, Any] = {}
        end = 0
        try:
            for line in self._file:
                if not line.endswith(b"\n"):
                    break  # The process was killed while it wrote this line.
                entry = json.loads(line)
                if header:
                    self.counts[entry[0]] += 1
                else:
                    header = {name: entry[name] for name in self._header} | entry
                end += len(line)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise self._unreadable(f"{type(error).__name__}: {error}") from error
        if header:
            self._check(header)
        self._file.truncate(end)
        if not header:
            self._write([self._header])

    def _check(self, header: Mapping[str, Any]) -> None:
        """Refuse a journal of another input or other options; note whether it is finished."""
        if header["version"] != _VERSION:
            raise self._unreadable(f"version {header['version']!r}")
        begun, now = header["identity"], self._header["identity"]
        for name in {**begun, **now}:
            if begun.get(name) != now.get(name):
                raise SettingError(
                    f"out={str(self.out)!r} was begun with {name} {begun.get(name)!r:.24}, now"
                    f" there is {name} {now.get(name)!r:.24}; go on with the same, choose another"
                    " name, or begin anew with --restart",
                    "out",
                )
        if "counts" in header:
            self.finished = True
            self.counts.update(header["counts"])
            if not self.out.exists():
                raise self._error(
                    "the run is finished, but the file is gone; begin anew with --restart"
                )

    def _write(self, entries: Sequence[Any]) -> None:
        lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries]
        self._file.write("".join(lines).encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _rows(self, *, rejected: bool) -> Iterator[dict[str, Any]]:
        """The rows for one of the outputs."""
        with self.path.open(encoding="utf-8") as file:
            for line in islice(file, 1, None):
                key, row = json.loads(line)
                if key.startswith(REJECTED) == rejected:
                    yield row

    def _unreadable(self, found: str) -> SettingError:
        return self._error(f"{self.path} cannot be read ({found}); begin anew with --restart")

    def _error(self, message: str) -> SettingError:
        return SettingError(f"out={str(self.out)!r}: {message}", "out")


Rows = Callable[[], Iterable[dict[str, Any]]]
"""Gives the same rows each time it is called."""


def _write_jsonl(path: Path, rows: Rows) -> None:
    temporary = path.with_name(path.name + ".new")
    with temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows())
    temporary.replace(path)


def _write_parquet(path: Path, rows: Rows) -> None:
    """Write rows of texts. A column has one type: if a problem is a chat, all become chats."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    chats = any(not isinstance(row["problem"], str) for row in rows())
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    problem = pa.list_(message) if chats else pa.string()
    schema = pa.schema([(name, problem if name in _PROBLEMS else pa.string()) for name in COLUMNS])
    temporary = path.with_name(path.name + ".new")
    remaining = iter(rows())
    with pq.ParquetWriter(temporary, schema) as writer:
        while group := list(islice(remaining, _ROWS_PER_GROUP)):
            if chats:
                group = [{**row, **{n: _as_chat(row[n]) for n in _PROBLEMS}} for row in group]
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
    temporary.replace(path)


def _as_chat(problem: Any) -> Any:
    return [{"role": "user", "content": problem}] if isinstance(problem, str) else problem
