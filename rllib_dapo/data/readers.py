"""Read the rows of a .jsonl, .json, .csv, .tsv, .parquet or .arrow file, with their numbers.

Texts may be compressed (`.jsonl.gz`). Rows are read one at a time.

Row numbers are 1-based. They count the lines of a JSONL file, the elements of a JSON list,
the data rows (without the header line) of a CSV file, or the rows of a parquet file.
"""

from __future__ import annotations

import bz2
import csv
import difflib
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rllib_dapo.data.json_tables import rows_of_table
from rllib_dapo.data.schemas import Schema, detect_schema
from rllib_dapo.errors import DataError

Row = tuple[int, Mapping[str, Any]]
"""The number of a row, 1-based, and its values by column."""
ChooseColumns = Callable[[list[str]], tuple[str, ...]]
"""Is given the columns of a file and returns those to read; may raise DataError."""


@dataclass(frozen=True, slots=True)
class DatasetPart:
    """One file of a data set, one split of the `datasets` library, or rows in memory.

    Attributes:
        name: what `Problem.source` calls it.
        where: what error messages call it.
        read: yields its rows. It calls its argument once, before the first row, to learn
            which columns to read.
    """

    name: str
    where: str
    read: Callable[[ChooseColumns], Iterator[Row]]

    def rows(
        self,
        problem_key: str | None,
        answer_key: str | None,
        problem_template: str | None = None,
        further: Callable[[list[str]], tuple[str, ...]] = lambda columns: (),
    ) -> Iterator[tuple[Schema, int, Mapping[str, Any]]]:
        """Yield each row with its number and the schema that reads it.

        Args:
            problem_key: column of the problem; None recognises the common names.
            answer_key: column of the ground truth, likewise.
            problem_template: makes the problem out of several columns.
            further: given the columns of the file, returns those to read beside these two.

        Raises:
            DataError: the file is malformed, cannot be read, or lacks a column.
        """
        schema: Schema | None = None

        def choose(columns: list[str]) -> tuple[str, ...]:
            nonlocal schema
            try:
                schema = detect_schema(columns, problem_key, answer_key, problem_template)
                return tuple(dict.fromkeys((*schema.columns, *further(columns))))
            except DataError as error:
                raise DataError(f"{self.where}, row 1: {error}") from error

        try:
            for number, row in self.read(choose):
                assert schema is not None  # noqa: S101 - readers choose before the first row
                yield schema, number, row
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{self.where}: cannot be read ({reason})") from error


_ABOUT_DATA = ("dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json")
SPLITS = ("train", "validation", "valid", "val", "dev", "eval", "test")
"""Words in the path of a file that say which split it belongs to."""


def read_rows(path: Path, choose_columns: ChooseColumns) -> Iterator[Row]:
    """Yield the rows of one file.

    Args:
        path: an existing file with one of the `SUFFIXES`.
        choose_columns: called once, with the columns of the first row (or of the file).

    Raises:
        DataError: the file is malformed; the message names file and row.
    """
    _refuse_pointer(path)
    return _READERS[format_of(path)](path, choose_columns)


def format_of(path: Path) -> str:
    """The suffix that says how a file is read, such as `.jsonl` of `train.jsonl.gz`; or ""."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if len(suffixes) > 1 and suffixes[-1] in _OPENERS and suffixes[0] in _TEXTS:
        return suffixes[0]
    return suffixes[-1] if suffixes and suffixes[-1] in _READERS else ""


def find_files(path: Path, split: str | None = None) -> list[Path]:
    """The data files of a data set, in a fixed order.

    Args:
        path: a file, or a folder. A folder is searched with its subfolders.
        split: for a folder, take only files with this word in their path.

    Raises:
        DataError: there is nothing to read, or a folder holds several splits and none was
            chosen (training on the test set by accident is worse than an error).
    """
    if not path.exists():
        raise DataError(_missing(path))
    if path.is_file():
        if not format_of(path):
            raise DataError(f"{path}: cannot read {path.suffix!r}; use {', '.join(_READERS)}")
        if split is not None:
            raise DataError(
                f"{path} is one file, so split={split!r} has nothing to choose from; name the"
                " file of that split, or a folder"
            )
        return [path]
    files = sorted(
        f
        for f in path.rglob("*")
        if format_of(f)
        and f.name not in _ABOUT_DATA
        and f.is_file()
        and not any(part.startswith(".") for part in f.relative_to(path).parts)
    )
    if not files:
        raise DataError(f"{path}: no {', '.join(_READERS)} file in this folder")
    words = {f: _words(f.relative_to(path)) for f in files}
    if split is not None:
        chosen = [f for f in files if split.lower() in words[f]]
        if not chosen:
            names = ", ".join(str(f.relative_to(path)) for f in files[:8])
            raise DataError(f"{path}: no file of split={split!r} among {names}")
        _refuse_configurations(path, chosen)
        return chosen
    splits = sorted({w for f in files for w in words[f] if w in SPLITS})
    if len(splits) > 1:
        raise DataError(
            f"{path} holds several splits ({', '.join(splits)}); choose one with split=…"
        )
    _refuse_configurations(path, files)
    return files


def _refuse_configurations(path: Path, files: list[Path]) -> None:
    """Refuse the same split in several folders, such as `main/` and `socratic/`."""
    above: set[str] = set()
    for file in files:
        parts = file.relative_to(path).parts
        place = next((i for i, part in enumerate(parts) if _words(Path(part)) & set(SPLITS)), None)
        if place is None:
            return
        above.add("/".join(parts[:place]))
    if len(above) > 1:
        raise DataError(
            f"{path} holds several configurations ({', '.join(sorted(above))}); name the folder of"
            f" one, such as {path / sorted(above)[-1]}, or list several as a mixture"
        )


def _words(relative: Path) -> set[str]:
    return set(re.findall(r"[^-_./\\\s]+", str(relative.with_suffix("")).lower()))


def _missing(path: Path) -> str:
    """The error message for a path that does not exist, with its nearest neighbours."""
    folder = path.parent
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    wanted = path.relative_to(folder).parts[0]
    names = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.4) or names[:5]
    listed = f"nearest there: {', '.join(near)}" if near else "that folder is empty"
    relative = "" if path.is_absolute() else f" (relative to {Path.cwd()})"
    return f"{path}: no such file or folder{relative}; looked in {folder}, {listed}"


def _refuse_pointer(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(60)
    if start.startswith((b"version https://git-lfs", b"# xet version")):
        raise DataError(
            f"{path}: a pointer of Git LFS instead of the data; run `git lfs pull` in its"
            " repository, or download the file"
        )


def _open(path: Path) -> IO[bytes]:
    opened: IO[bytes] = _OPENERS.get(path.suffix.lower(), open)(path, "rb")
    return opened


def _decode(line: bytes, path: Path, row: int) -> str:
    try:
        return line.decode("utf-8-sig" if row <= 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, row {row}: not UTF-8 (byte 0x{line[error.start]:02x} at position"
            f" {error.start + 1}); save the file as UTF-8"
        ) from error


def _parse(text: str, path: Path, row: int | None) -> Any:
    where = str(path) if row is None else f"{path}, row {row}"
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if row is None else ""
        raise DataError(
            f"{where}: not valid JSON ({error.msg} at {line}character {error.colno}), found"
            f" {text[max(0, error.pos - 10) : error.pos + 30]!r}; repair or remove it"
        ) from error
    except (ValueError, RecursionError) as error:  # a number too long, or nesting too deep
        raise DataError(f"{where}: JSON that cannot be read ({error}); remove it") from error


def _as_row(value: Any, path: Path, row: int) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise DataError(
        f"{path}, row {row}: found {value!r:.60} ({type(value).__name__}); each row must be an"
        " object with a problem and an answer"
    )


def _read_jsonl(path: Path, choose_columns: ChooseColumns) -> Iterator[Row]:
    first = True
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            text = _decode(line, path, number)
            if not text.strip():
                continue
            row = _as_row(_parse(text, path, number), path, number)
            if first:
                choose_columns(list(row))
                first = False
            yield number, row


def _read_json(path: Path, choose_columns: ChooseColumns) -> Iterator[Row]:
    with _open(path) as file:
        text = _decode(file.read(), path, 1)
    if _is_lines(text):
        yield from _read_jsonl(path, choose_columns)
        return
    data = _parse(text, path, None)
    if isinstance(data, Mapping):
        data = rows_of_table(data) or data
    if isinstance(data, Mapping):
        lists = [v for v in data.values() if isinstance(v, list)]
        if len(lists) > 1:
            raise DataError(
                f"{path}: found an object with {len(lists)} lists of rows; a .json file must hold"
                " one list of objects (one object a line is .jsonl), or one row"
            )
        # MATH was first published as a folder of files that hold one problem each.
        data = lists[0] if lists else [data]
    if not isinstance(data, list):
        raise DataError(f"{path}: found {type(data).__name__}; the file must hold a list of rows")
    for number, value in enumerate(data, start=1):
        row = _as_row(value, path, number)
        if number == 1:
            choose_columns(list(row))
        yield number, row


def _is_lines(text: str) -> bool:
    """Whether a text has one JSON object a line, as `Dataset.to_json` writes them."""
    first, _, rest = text.lstrip().partition("\n")
    if not first.startswith("{") or not rest.strip():
        return False
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _decoded_lines(file: IO[bytes], path: Path) -> Iterator[str]:
    for number, line in enumerate(file):
        yield _decode(line, path, number)  # the header line is number 0


def _read_csv(path: Path, choose_columns: ChooseColumns) -> Iterator[Row]:
    with _open(path) as file:
        csv.field_size_limit(2**31 - 1)  # Solutions of models have more than 131,072 characters.
        delimiter = "\t" if format_of(path) == ".tsv" else ","
        rows = csv.reader(_decoded_lines(file, path), delimiter=delimiter, strict=True)
        number = 0
        try:
            header = next(rows, None)
            if header is None:
                return
            choose_columns(header)
            for number, cells in enumerate(rows, start=1):
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise DataError(
                        f"{path}, row {number}: found {len(cells)} cells under {len(header)}"
                        " columns; put cells that hold commas in quotes"
                    )
                yield number, dict(zip(header, cells, strict=True))
        except csv.Error as error:
            raise DataError(f"{path}, row {number + 1}: malformed CSV ({error})") from error


def _read_parquet(path: Path, choose_columns: ChooseColumns) -> Iterator[Row]:
    # Imported here because it takes half a second, and most data sets are JSONL.
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = list(choose_columns(file.schema_arrow.names))
            number = 0
            for batch in file.iter_batches(batch_size=4096, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable parquet file ({error})") from error


def _read_arrow(path: Path, choose_columns: ChooseColumns) -> Iterator[Row]:
    """Read a stream of Arrow batches, as `datasets` keeps them, or an Arrow file (Feather)."""
    import pyarrow

    try:
        with pyarrow.memory_map(str(path)) as source:
            try:
                batches = iter(pyarrow.ipc.open_stream(source))
            except pyarrow.ArrowInvalid:
                file = pyarrow.ipc.open_file(source)
                batches = (file.get_batch(i) for i in range(file.num_record_batches))
            number = 0
            for batch in batches:
                if number == 0:
                    columns = list(choose_columns(batch.schema.names))
                for row in batch.select(columns).to_pylist():
                    number += 1
                    yield number, row
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not a readable Arrow file ({error})") from error


_OPENERS: dict[str, Callable[[Path, str], Any]] = {
    ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open,
}  # fmt: skip
_TEXTS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
_READERS: dict[str, Callable[[Path, ChooseColumns], Iterator[Row]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".tsv": _read_csv,
    ".ndjson": _read_jsonl,
    ".arrow": _read_arrow,
    ".feather": _read_arrow,
}

SUFFIXES = tuple(_READERS)
"""The file formats that are read."""
