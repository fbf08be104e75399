"""Load the data set that `dataset` names: files, a saved data set, or one on the hub.

Every row is checked while the data set is loaded. A bad row therefore stops the run at its
start, with file, row and column, and not after an hour of training in which its reward is
always wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from rllib_dapo.data.hub_data import hub_part, is_saved, saved_files, saved_part
from rllib_dapo.data.kept_columns import Kept, read_kept
from rllib_dapo.data.load_report import OnBadRow
from rllib_dapo.data.problem_set import ProblemSet, ProblemSetBuilder
from rllib_dapo.data.readers import (
    SUFFIXES,
    ChooseColumns,
    DatasetPart,
    Row,
    find_files,
    read_rows,
)
from rllib_dapo.errors import SettingError

Stamp = tuple[tuple[str, int, int], ...]
"""The path, the time of the last change (ns) and the size (bytes) of each file of a data set."""

# owner/name, as the hub allows them. A text with more parts, or fewer, is a path.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")


def load_problems(
    path: str | Path,
    *,
    problem_key: str | None = None,
    answer_key: str | None = None,
    split: str | None = None,
    subset: str | None = None,
    deduplicate: bool = False,
    limit: int | None = None,
    problem_template: str | None = None,
    on_bad_row: OnBadRow = "error",
    columns: Kept | Sequence[str] | None = None,
) -> ProblemSet:
    """Load and check a data set.

    Args:
        path: a .jsonl, .json, .csv or .parquet file, a folder of such files, a folder
            written by the `save_to_disk` of the `datasets` library, or the id of a data set
            on the Hugging Face hub (`owner/name`).
        problem_key: column of the problem; None recognises the common names.
        answer_key: column of the ground truth, likewise; dots lead into mappings.
        split: for a folder, read only the files with this word in their path, such as
            `train`; for a data set of the `datasets` library, read this split.
        subset: which configuration of a data set on the hub to read.
        deduplicate: keep only the first row of each problem.
        limit: keep only the first `limit` problems and do not read on.
        problem_template: makes the problem out of several columns, as `"{Body} {Question}"`.
        on_bad_row: `error` refuses a data set with rows that cannot be used, and lists them;
            `skip` leaves them out, and `ProblemSet.report` lists them.
        columns: further columns to keep (`Problem.columns`); a list of names that must exist, or
            a mapping from name to whether it must.

    Raises:
        DataError: the data cannot be used; the message names file, row (1-based) and column.
        SettingError: `limit` is below 1, or the `datasets` library is needed and missing.
    """
    if limit is not None and limit < 1:
        raise SettingError(f"limit={limit}: keep at least 1 problem", "limit")
    if on_bad_row not in get_args(OnBadRow):
        raise SettingError(f"on_bad_row={on_bad_row!r}: use error or skip", "on_bad_row")
    name = str(Path(path).expanduser())
    builder = ProblemSetBuilder(name, deduplicate, limit, on_bad_row, read_kept(columns))
    for part in find_parts(path, split, subset):
        builder.add_part(part, problem_key, answer_key, problem_template)
        if builder.full:
            break
    return builder.finish()


def problems_from_rows(
    rows: Iterable[Mapping[str, Any]],
    *,
    name: str = "rows",
    problem_key: str | None = None,
    answer_key: str | None = None,
    deduplicate: bool = False,
    problem_template: str | None = None,
    on_bad_row: OnBadRow = "error",
    columns: Kept | Sequence[str] | None = None,
) -> ProblemSet:
    """Check rows in memory, such as `df.to_dict("records")`, and make a data set of them.

    The arguments are those of `load_problems`; `name` stands in messages for the file.

    Raises:
        DataError: as `load_problems`.
    """

    def read(choose_columns: ChooseColumns) -> Iterator[Row]:
        for number, row in enumerate(rows, start=1):
            if number == 1:
                choose_columns(list(row))
            yield number, row

    builder = ProblemSetBuilder(name, deduplicate, None, on_bad_row, read_kept(columns))
    builder.add_part(DatasetPart(name, name, read), problem_key, answer_key, problem_template)
    return builder.finish()


def is_hub_id(location: str | Path) -> bool:
    """Whether this is an id on the hub: it reads `owner/name`, and no folder `owner` exists."""
    text = str(location)
    if _HUB_ID.fullmatch(text) is None or Path(text).suffix.lower() in SUFFIXES:
        return False
    return not Path(text).parent.exists()


def find_parts(
    location: str | Path, split: str | None = None, subset: str | None = None
) -> list[DatasetPart]:
    """The parts of a data set, in a fixed order. The arguments are those of `load_problems`.

    Raises:
        DataError: there is nothing to read, or there are several splits and none was chosen.
        SettingError: `subset` was given without a hub id, or the `datasets` library is missing.
    """
    if is_hub_id(location):
        return [hub_part(str(location), split, subset)]
    path = _local(location, subset)
    if is_saved(path):
        return [saved_part(path, split)]
    return [
        DatasetPart(
            name=file.name if file == path else str(file.relative_to(path)),
            where=str(file),
            read=partial(read_rows, file),
        )
        for file in find_files(path, split)
    ]


def stamp(location: str | Path, split: str | None = None, subset: str | None = None) -> Stamp:
    """A value that changes when the files of a data set change; empty for one on the hub.

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
