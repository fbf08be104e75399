"""Data sets of problems with checkable answers.

Every row is checked when the set is loaded: a bad one stops the run there, with its file,
row and column, and not after an hour of training as a reward that is always wrong.
"""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from rllib_dapo.data.readers import find_files, read_rows
from rllib_dapo.data.schemas import Messages, RowError, Schema, detect_schema
from rllib_dapo.errors import DataError, SettingError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    Attributes:
        problem: its text, or chat messages (dicts with `role` and `content`).
        answer: the ground truth as text, known to be readable by the graders.
        source: `file:row`, the row 1-based.

    Example: `Problem("What is 2+3?", "5", "train.jsonl:12")`.
    """

    problem: str | Messages
    answer: str
    source: str

    @property
    def text(self) -> str:
        """The problem's text: of a chat, that of its last message, which is the user's."""
        return self.problem if isinstance(self.problem, str) else self.problem[-1]["content"]


class ProblemSet(Sequence[Problem]):
    """An immutable sequence of problems.

    Texts are held once however often they are repeated, and a row costs 16 bytes: the
    published DAPO-Math-17k repeats each of its problems a hundred times.

    Attributes:
        name: where the problems came from.
        num_duplicates: rows whose problem occurred before (dropped or not).
        num_conflicts: how many of those give another answer than the first time.
    """

    __slots__ = (
        "__weakref__",
        "_answer_of",
        "_answers",
        "_file_of",
        "_files",
        "_problem_of",
        "_problems",
        "_row_of",
        "name",
        "num_conflicts",
        "num_duplicates",
    )

    def __init__(self, builder: _Builder) -> None:
        set_once = object.__setattr__
        set_once(self, "name", builder.name)
        set_once(self, "num_duplicates", builder.num_duplicates)
        set_once(self, "num_conflicts", builder.num_conflicts)
        set_once(self, "_files", tuple(builder.files))
        set_once(self, "_problems", tuple(builder.problems))
        set_once(self, "_answers", tuple(builder.answers))
        for name in ("problem_of", "answer_of", "file_of", "row_of"):
            set_once(self, "_" + name, getattr(builder, name))

    name: str
    num_duplicates: int
    num_conflicts: int
    _files: tuple[str, ...]
    _problems: tuple[str, ...]
    _answers: tuple[str, ...]
    _problem_of: array[int]
    _answer_of: array[int]
    _file_of: array[int]
    _row_of: array[int]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a ProblemSet is immutable: {name} cannot be set")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by slots, past the guard against assignment."""
        names = [name for name in self.__slots__ if name != "__weakref__"]
        return _unpickle, ({name: getattr(self, name) for name in names},)

    def __len__(self) -> int:
        """Number of rows kept."""
        return len(self._problem_of)

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> list[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | list[Problem]:
        """Problem number `index`; a slice gives a list."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        key = self._problems[self._problem_of[index]]
        return Problem(
            json.loads(key[1:]) if key[0] == "c" else key[1:],
            self._answers[self._answer_of[index]],
            f"{self._files[self._file_of[index]]}:{self._row_of[index]}",
        )

    @property
    def num_distinct(self) -> int:
        """Number of different problems."""
        return len(self._problems)

    def __repr__(self) -> str:
        return f"ProblemSet({self.name!r}, {len(self)} problems, {self.num_distinct} different)"


def load_problems(
    path: str | Path,
    *,
    problem_key: str | None = None,
    answer_key: str | None = None,
    split: str | None = None,
    deduplicate: bool = False,
    limit: int | None = None,
) -> ProblemSet:
    """Load and check a data set.

    Args:
        path: a .jsonl, .json, .csv or .parquet file, or a folder of such files.
        problem_key: column of the problem; None recognises the common ones.
        answer_key: column of the ground truth, likewise; dots lead into mappings.
        split: of a folder, only the files with this word in their path, such as `train`.
        deduplicate: keep only the first row of each problem.
        limit: keep the first so many problems and do not read on.

    Raises:
        DataError: the data cannot be used; names file, row (1-based) and column.
        SettingError: `limit` is below 1.
    """
    if limit is not None and limit < 1:
        raise SettingError(f"limit={limit}: keep at least 1 problem", "limit")
    path = Path(path).expanduser()
    builder = _Builder(str(path), problem_key, answer_key, deduplicate, limit)
    for file in find_files(path, split):
        name = file.name if file == path else str(file.relative_to(path))
        try:
            builder.add_file(name, file)
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error
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
    builder = _Builder(name, problem_key, answer_key, deduplicate, None)
    builder.files.append(name)
    schema: Schema | None = None
    for number, row in enumerate(rows, start=1):
        if schema is None:
            schema = builder.schema_for(list(row), name)
        builder.add(schema, row, number, name)
    return builder.finish()


class _Builder:
    """Collects checked rows."""

    def __init__(
        self,
        name: str,
        problem_key: str | None,
        answer_key: str | None,
        deduplicate: bool,
        limit: int | None,
    ) -> None:
        self.name = name
        self.keys = (problem_key, answer_key)
        self.deduplicate = deduplicate
        self.limit = limit
        self.files: list[str] = []
        self.problems: dict[str, int] = {}  # text, or "c" + JSON of a chat -> number
        self.answers: dict[str, int] = {}
        self.first_answer = array("I")  # of each problem, to notice conflicts
        self.problem_of, self.answer_of = array("I"), array("I")
        self.file_of, self.row_of = array("I"), array("I")
        self.num_duplicates = 0
        self.num_conflicts = 0

    @property
    def full(self) -> bool:
        return self.limit is not None and len(self.problem_of) >= self.limit

    def schema_for(self, columns: list[str], where: str) -> Schema:
        try:
            return detect_schema(columns, *self.keys)
        except DataError as error:
            raise DataError(f"{where}, row 1: {error}") from error

    def add_file(self, name: str, path: Path) -> None:
        self.files.append(name)
        schema: Schema | None = None

        def choose(columns: list[str]) -> tuple[str, ...]:
            nonlocal schema
            schema = self.schema_for(columns, str(path))
            return schema.columns

        for number, row in read_rows(path, choose):
            assert schema is not None  # noqa: S101 - readers choose before the first row
            self.add(schema, row, number, str(path))
            if self.full:
                return

    def add(self, schema: Schema, row: Mapping[str, Any], number: int, where: str) -> None:
        try:
            problem, answer = schema.read(row)
        except RowError as error:
            raise DataError(f"{where}, row {number}, {error}") from error
        key = "t" + problem if isinstance(problem, str) else "c" + json.dumps(problem)
        answer_number = self.answers.setdefault(answer, len(self.answers))
        problem_number = self.problems.setdefault(key, len(self.problems))
        if problem_number < len(self.first_answer):
            self.num_duplicates += 1
            self.num_conflicts += self.first_answer[problem_number] != answer_number
            if self.deduplicate:
                return
        else:
            self.first_answer.append(answer_number)
        self.problem_of.append(problem_number)
        self.answer_of.append(answer_number)
        self.file_of.append(len(self.files) - 1)
        self.row_of.append(number)

    def finish(self) -> ProblemSet:
        if not self.problem_of:
            raise DataError(f"{self.name}: the data set is empty; it needs at least one problem")
        if self.num_duplicates:
            fate = "dropped" if self.deduplicate else "kept; deduplicate=True drops them"
            conflict = f", {self.num_conflicts} with another answer" if self.num_conflicts else ""
            _log.warning(
                "%s: %d rows repeat a problem (%d different problems%s); they are %s",
                self.name,
                self.num_duplicates,
                len(self.problems),
                conflict,
                fate,
            )
        return ProblemSet(self)


def _unpickle(state: dict[str, Any]) -> ProblemSet:
    problems = ProblemSet.__new__(ProblemSet)
    for name, value in state.items():
        object.__setattr__(problems, name, value)
    return problems
