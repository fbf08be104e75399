"""Data sets of problems with checkable answers.

Every row is checked when the set is loaded: a bad one stops the run there, with its file,
row and column, and not after an hour of training as a reward that is always wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rllib_dapo.data.locations import find_parts
from rllib_dapo.data.problem_set import Problem, ProblemSet, ProblemSetBuilder
from rllib_dapo.data.readers import Part
from rllib_dapo.data.schemas import Schema
from rllib_dapo.errors import DataError, SettingError

__all__ = ["Problem", "ProblemSet", "load_problems", "problems_from_rows"]


def load_problems(
    path: str | Path,
    *,
    problem_key: str | None = None,
    answer_key: str | None = None,
    split: str | None = None,
    subset: str | None = None,
    deduplicate: bool = False,
    limit: int | None = None,
) -> ProblemSet:
    """Load and check a data set.

    Args:
        path: a .jsonl, .json, .csv or .parquet file, a folder of such files, a folder
            written by the `save_to_disk` of the `datasets` library, or the id of a data set
            on the Hugging Face hub (`owner/name`).
        problem_key: column of the problem; None recognises the common ones.
        answer_key: column of the ground truth, likewise; dots lead into mappings.
        split: of a folder, only the files with this word in their path, such as `train`;
            of a data set of the `datasets` library, its split.
        subset: which configuration of a data set on the hub.
        deduplicate: keep only the first row of each problem.
        limit: keep the first so many problems and do not read on.

    Raises:
        DataError: the data cannot be used; names file, row (1-based) and column.
        SettingError: `limit` is below 1, or the `datasets` library is needed and missing.
    """
    if limit is not None and limit < 1:
        raise SettingError(f"limit={limit}: keep at least 1 problem", "limit")
    builder = ProblemSetBuilder(
        str(Path(path).expanduser()),
        problem_key=problem_key,
        answer_key=answer_key,
        deduplicate=deduplicate,
        limit=limit,
    )
    for part in find_parts(path, split, subset):
        try:
            _add_part(builder, part)
        except OSError as error:
            raise DataError(f"{part.where}: cannot be read ({error.strerror or error})") from error
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
) -> ProblemSet:
    """The same for rows at hand, for instance `df.to_dict("records")`.

    Raises:
        DataError: as `load_problems`, with `name` in place of the file.
    """
    builder = ProblemSetBuilder(
        name, problem_key=problem_key, answer_key=answer_key, deduplicate=deduplicate
    )
    builder.files.append(name)
    schema: Schema | None = None
    for number, row in enumerate(rows, start=1):
        if schema is None:
            schema = builder.schema_for(list(row), name)
        builder.add(schema, row, number, name)
    return builder.finish()


def _add_part(builder: ProblemSetBuilder, part: Part) -> None:
    builder.files.append(part.name)
    schema: Schema | None = None

    def choose(columns: list[str]) -> tuple[str, ...]:
        nonlocal schema
        schema = builder.schema_for(columns, part.where)
        return schema.columns

    for number, row in part.read(choose):
        assert schema is not None  # noqa: S101 - readers choose before the first row
        builder.add(schema, row, number, part.where)
        if builder.full:
            return
