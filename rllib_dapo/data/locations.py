"""What the setting `dataset` points at: files, a saved data set, or an id on the hub."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from rllib_dapo.data.hub_data import hub_parts, is_saved, saved_files, saved_parts
from rllib_dapo.data.readers import SUFFIXES, Part, find_files, read_rows
from rllib_dapo.errors import SettingError

Stamp = tuple[tuple[str, int, int], ...]
"""Path, time of the last change (ns) and size (bytes) of each file of a data set."""

# owner/name, as the hub allows them. Anything with more parts, or less, is a path.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")


def is_hub_id(location: str | Path) -> bool:
    """Whether this is an id on the hub: `owner/name`, and no folder `owner` is here."""
    text = str(location)
    if _HUB_ID.fullmatch(text) is None or Path(text).suffix.lower() in SUFFIXES:
        return False
    return not Path(text).parent.exists()


def find_parts(
    location: str | Path, split: str | None = None, subset: str | None = None
) -> list[Part]:
    """The parts of a data set, in a fixed order.

    Args:
        location: see `problems.load_problems`.
        split: see there.
        subset: see there.

    Raises:
        DataError: there is nothing to read, or several splits and none was chosen.
        SettingError: `subset` without a hub id, or the `datasets` library is missing.
    """
    if is_hub_id(location):
        return hub_parts(str(location), split, subset)
    path = _local(location, subset)
    if is_saved(path):
        return saved_parts(path, split)
    return [
        Part(
            name=file.name if file == path else str(file.relative_to(path)),
            where=str(file),
            read=partial(read_rows, file),
        )
        for file in find_files(path, split)
    ]


def stamp(location: str | Path, split: str | None = None, subset: str | None = None) -> Stamp:
    """What changes when the files of a data set change; always empty for one on the hub.

    Raises:
        DataError: as `find_parts`.
        SettingError: as `find_parts`.
    """
    if is_hub_id(location):
        return ()
    path = _local(location, subset)
    files = saved_files(path) if is_saved(path) else find_files(path, split)
    return tuple(
        (str(file.resolve()), (stat := file.stat()).st_mtime_ns, stat.st_size) for file in files
    )


def _local(location: str | Path, subset: str | None) -> Path:
    if subset is not None:
        raise SettingError(
            f"subset={subset!r}: only a data set on the hub (owner/name) has subsets, and"
            f" {str(location)!r} is a path; leave it out",
            "subset",
        )
    return Path(location).expanduser()
