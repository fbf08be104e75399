"""Read data sets of the `datasets` library, from a folder or from the Hugging Face hub.

The library is an optional extra. It is imported only when such a data set is asked for.
Code that comes with a data set is never run; a data set that needs it is refused.
"""

from __future__ import annotations

import difflib
import importlib
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rllib_dapo.data.readers import ChooseColumns, DatasetPart, Row
from rllib_dapo.errors import DataError, SettingError

INSTALL = "pip install 'rllib-dapo[data]'"
"""The command that installs the library."""

_log = logging.getLogger(__name__)

_BATCH = 4096  # the number of rows that become Python objects at once


def is_saved(path: Path) -> bool:
    """Whether `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote this folder."""
    splits = (path / "dataset_dict.json").is_file() and any(path.glob("*/state.json"))
    return splits or ((path / "state.json").is_file() and (path / "dataset_info.json").is_file())


def saved_files(path: Path) -> list[Path]:
    """The files of a folder for which `is_saved` holds, in a fixed order."""
    return sorted(f for f in path.rglob("*") if f.suffix in (".arrow", ".json") and f.is_file())


def saved_part(path: Path, split: str | None) -> DatasetPart:
    """The split of a saved data set that is to be read.

    Raises:
        DataError: the folder cannot be read, it holds several splits and none was chosen, or
            the chosen split is not there.
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
        return _part(path.name, str(path), data)
    name = _choose_split(str(path), data, split)
    return _part(name, f"{path}, split {name!r}", data[name])


def hub_part(hub_id: str, split: str | None, subset: str | None) -> DatasetPart:
    """The split of a data set on the hub that is to be read.

    Args:
        hub_id: `owner/name`.
        split: the split's name, or a slice as the library writes it (`train[:10%]`).
        subset: which configuration to read, for data sets that have several.

    Raises:
        DataError: it cannot be loaded, or there are several splits and none was chosen.
        SettingError: the library is missing.
    """
    library = _library(hub_id, "is not a file or folder here; to read it from the hub takes")
    named = "/".join((hub_id, *([subset] if subset else [])))
    _log.info("loading %s from the Hugging Face hub, because there is no such folder", named)
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
    return _part(where, where, data)


def _library(what: str, why: str) -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise SettingError(
            f"dataset={what!r} {why} the `datasets` library, which cannot be imported ({error}):"
            f" {INSTALL}",
            "dataset",
        ) from error


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
    # In Arrow format rows arrive as from a parquet file, and images are not decoded.
    number = 0
    for table in data.select_columns(columns).with_format("arrow").iter(batch_size=_BATCH):
        for row in table.to_pylist():
            number += 1
            yield number, row


def _line(error: Exception) -> str:
    """The kind of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _remedy(error: Exception) -> str:
    if _is_network(error):
        return (
            "the hub cannot be reached from here: on a machine that reaches it, run"
            " `datasets.load_dataset(…).save_to_disk(folder)`, and give that folder here"
        )
    if "onfig" in str(error):
        return "set `subset` to one of its configurations"
    if "script" in str(error) or "trust_remote_code" in str(error):
        return "code that comes with a data set is never run: convert the data set to parquet"
    return "check the id, `subset` and `split`, or give a file or folder"


def _is_network(error: BaseException | None) -> bool:
    """Whether this error, or one of its causes, is a failure to reach the hub."""
    while error is not None:
        names = {kind.__name__ for kind in type(error).__mro__}
        if names & {"ConnectionError", "ConnectError", "TimeoutException", "OfflineModeIsEnabled"}:
            return True
        error = error.__cause__ or error.__context__
    return False
