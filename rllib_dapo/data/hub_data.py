"""Data sets of the `datasets` library: saved in a folder, or named on the Hugging Face hub.

The library is an optional extra and imported only when such a data set is asked for. Code
from the hub is never run: data sets that need theirs are refused.
"""

from __future__ import annotations

import difflib
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rllib_dapo.data.readers import ChooseColumns, DatasetPart, Row
from rllib_dapo.errors import DataError, SettingError

INSTALL = "pip install 'rllib-dapo[data]'"
"""What brings the library."""

_log = logging.getLogger(__name__)

_BATCH = 4096  # rows turned into Python objects at once


def is_saved(path: Path) -> bool:
    """Whether `save_to_disk` of a `Dataset` or a `DatasetDict` has written this folder."""
    return (path / "dataset_dict.json").is_file() or (
        (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
    )


def saved_files(path: Path) -> list[Path]:
    """The files of such a folder, in a fixed order."""
    return sorted(f for f in path.rglob("*") if f.suffix in (".arrow", ".json") and f.is_file())


def saved_parts(path: Path, split: str | None) -> list[DatasetPart]:
    """The one split of a saved data set that is to be read.

    Raises:
        DataError: there are several splits and none was chosen, or not the one chosen, or
            the folder cannot be read.
        SettingError: the library is missing.
    """
    library = _library(str(path), "was written by")
    try:
        data = library.load_from_disk(str(path))
    except Exception as error:
        raise DataError(f"{path}: cannot be read by `datasets` ({_line(error)})") from error
    if not isinstance(data, Mapping):
        if split is not None and split != str(data.split):
            raise DataError(
                f"{path} is one data set, so split={split!r} has nothing to choose from; leave"
                " it out"
            )
        return [_part(path.name, str(path), data)]
    name = _choose_split(str(path), data, split)
    return [_part(name, f"{path}, split {name!r}", data[name])]


def hub_parts(hub_id: str, split: str | None, subset: str | None) -> list[DatasetPart]:
    """The one split of a data set on the hub that is to be read.

    Args:
        hub_id: `owner/name`.
        split: its name, or a slice as the library reads it (`train[:10%]`).
        subset: which configuration, for data sets that have several.

    Raises:
        DataError: it cannot be loaded, or several splits are there and none was chosen.
        SettingError: the library is missing.
    """
    library = _library(hub_id, "is no file or folder here; as an id on the hub it takes")
    named = "/".join((hub_id, *([subset] if subset else [])))
    _log.info("loading %s from the Hugging Face hub: no such folder is here", named)
    try:
        data = library.load_dataset(hub_id, name=subset, split=split)
    except Exception as error:
        raise DataError(
            f"{named}: no such file or folder here ({Path.cwd()}), and it cannot be loaded from"
            f" the Hugging Face hub ({_line(error)}); {_remedy(error)}"
        ) from error
    if isinstance(data, Mapping):
        split = _choose_split(named, data, split)
        data = data[split]
    where = f"{named}/{split}"
    return [_part(where, where, data)]


def _library(what: str, why: str) -> Any:
    try:
        library = importlib.import_module("datasets")
    except ImportError as error:
        raise SettingError(
            f"dataset={what!r} {why} the `datasets` library, which cannot be imported ({error}):"
            f" {INSTALL}",
            "dataset",
        ) from error
    return library


def _choose_split(where: str, splits: Mapping[str, Any], split: str | None) -> str:
    names = [str(name) for name in splits]
    if split is None:
        if len(names) == 1:
            return names[0]
        raise DataError(f"{where} holds several splits ({', '.join(names)}); choose one: split=…")
    if split in names:
        return split
    near = difflib.get_close_matches(split, names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise DataError(f"{where}: no split={split!r}{hint}; it has {', '.join(names)}")


def _part(name: str, where: str, data: Any) -> DatasetPart:
    return DatasetPart(name, where, partial(_rows, data))


def _rows(data: Any, choose_columns: ChooseColumns) -> Iterator[Row]:
    columns = list(choose_columns(list(data.column_names)))
    # As Arrow, so that rows arrive as from a parquet file and images are not decoded.
    number = 0
    for table in data.select_columns(columns).with_format("arrow").iter(batch_size=_BATCH):
        for row in table.to_pylist():
            number += 1
            yield number, row


def _line(error: Exception) -> str:
    """The first line of an error, with its kind."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _remedy(error: Exception) -> str:
    for matches, remedy in _REMEDIES:
        if matches(error):
            return remedy
    return "check the id, `subset` and `split`, or give a file or folder"


def _is_network(error: BaseException | None) -> bool:
    """Whether a failure to reach the hub is this error or behind it."""
    while error is not None:
        names = {kind.__name__ for kind in type(error).__mro__}
        if names & {"ConnectionError", "ConnectError", "TimeoutException", "OfflineModeIsEnabled"}:
            return True
        error = error.__cause__ or error.__context__
    return False


_REMEDIES: tuple[tuple[Callable[[Exception], bool], str], ...] = (
    (
        _is_network,
        "the hub cannot be reached from here: where it can, run"
        " `datasets.load_dataset(…).save_to_disk(folder)`, and give that folder here",
    ),
    (
        lambda error: "onfig" in str(error),
        "set `subset` to one of its configurations",
    ),
    (
        lambda error: "script" in str(error) or "trust_remote_code" in str(error),
        "data sets that bring code are not run: convert it to parquet",
    ),
)
