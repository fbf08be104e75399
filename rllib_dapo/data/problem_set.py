"""A loaded data set: checked problems, with each text held once."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from rllib_dapo.data.kept_columns import ColumnValues, Kept, KeptColumns
from rllib_dapo.data.readers import DatasetPart
from rllib_dapo.data.schemas import Messages, RowError, Schema
from rllib_dapo.errors import DataError
from rllib_dapo.rewards.grading.grade import parse_gold
from rllib_dapo.types import IntArray

_log = logging.getLogger(__name__)

# The columns of the table of rows. A row refers to its problem, answer and file by number.
_PROBLEM, _ANSWER = 0, 1  # the others are the file and the row's number in it


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    Attributes:
        problem: its text, or chat messages (dicts with `role` and `content`).
        answer: the ground truth as text, known to be readable by the graders.
        source: `file:row`, with the row counted from 1.
        columns: the values of further columns, those that were asked for.

    Example: `Problem("What is 2+3?", "5", "train.jsonl:12")`.
    """

    problem: str | Messages
    answer: str
    source: str
    columns: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def text(self) -> str:
        """The problem's text; for a chat, the text of its last message, which is the user's."""
        return self.problem if isinstance(self.problem, str) else self.problem[-1]["content"]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False, repr=False)
class ProblemSet(Sequence[Problem]):
    """An immutable sequence of problems.

    A text is held once however often it is repeated, and a row costs 16 bytes: the
    published DAPO-Math-17k repeats each of its problems a hundred times.

    Attributes:
        name: where the problems came from.
        num_duplicates: the number of rows whose problem occurred before, dropped or not.
        num_conflicts: the number of those whose answer differs from the first one.
        integer_answers: whether every ground truth is an integer without a unit.
    """

    name: str
    num_duplicates: int
    num_conflicts: int
    integer_answers: bool
    _problems: tuple[str, ...]  # the different ones, as `_encoded` writes them
    _answers: tuple[str, ...]
    _files: tuple[str, ...]
    _rows: npt.NDArray[np.uint32]  # [len, 4], problem, answer, file, row number
    _columns: ColumnValues  # of the further columns that were asked for

    def __len__(self) -> int:
        """The number of rows that were kept."""
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> list[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | list[Problem]:
        """Problem number `index`; a slice gives a list."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        problem, answer, file, row = self._rows[index].tolist()
        return Problem(
            _decoded(self._problems[problem]),
            self._answers[answer],
            f"{self._files[file]}:{row}",
            self._columns.of(index),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The further columns that were asked for and are there."""
        return self._columns.names

    @property
    def num_distinct(self) -> int:
        """The number of different problems."""
        return len(self._problems)

    @property
    def distinct_of(self) -> IntArray:
        """int64[len], for each row the number of its problem among the different ones.

        The different problems are numbered 0, 1, 2, … in the order of their first rows.
        """
        return self._rows[:, _PROBLEM].astype(np.int64)

    def distinct_texts(self) -> Iterator[str]:
        """The text of each different problem, in the order of their numbers."""
        for key in self._problems:
            yield Problem(_decoded(key), "", "").text

    def __repr__(self) -> str:
        return f"ProblemSet({self.name!r}, {len(self)} problems, {self.num_distinct} different)"


class ProblemSetBuilder:
    """Checks rows and collects those that are kept.

    Args:
        name: where the rows come from.
        deduplicate: keep only the first row of each problem.
        limit: how many problems to keep; None for all.
        kept: the further columns to keep for reward functions.
    """

    def __init__(
        self,
        name: str,
        deduplicate: bool = False,
        limit: int | None = None,
        kept: Kept | None = None,
    ) -> None:
        self._name = name
        self._deduplicate = deduplicate
        self._limit = limit
        self._problems: dict[str, int] = {}  # from the encoded problem to its number
        self._answers: dict[str, int] = {}
        self._files: list[str] = []
        self._rows = array("I")  # four numbers for each row, as in ProblemSet
        self._first_answer = array("I")  # of each problem, to notice conflicts
        self._num_duplicates = 0
        self._num_conflicts = 0
        self._kept = KeptColumns(kept or {})

    @property
    def full(self) -> bool:
        """Whether `limit` is reached."""
        return self._limit is not None and len(self._rows) >= 4 * self._limit

    def add_part(
        self, part: DatasetPart, problem_key: str | None = None, answer_key: str | None = None
    ) -> None:
        """Check and keep the rows of a part until the limit is reached.

        Raises:
            DataError: the part cannot be read, or a row cannot be used.
        """
        self._files.append(part.name)
        for schema, number, row in part.rows(problem_key, answer_key, self._kept.heads):
            self._add(schema, row, number, part.where)
            if self.full:
                return

    def _add(self, schema: Schema, row: Mapping[str, Any], number: int, where: str) -> None:
        try:
            problem, answer = schema.read(row)
            further = self._kept.read(row)
        except RowError as error:
            raise DataError(f"{where}, row {number}, {error}") from error
        answer_number = self._answers.setdefault(answer, len(self._answers))
        problem_number = self._problems.setdefault(_encoded(problem), len(self._problems))
        if problem_number < len(self._first_answer):
            self._num_duplicates += 1
            self._num_conflicts += self._first_answer[problem_number] != answer_number
            if self._deduplicate:
                return
        else:
            self._first_answer.append(answer_number)
        self._rows.extend((problem_number, answer_number, len(self._files) - 1, number))
        self._kept.add(further)

    def finish(self) -> ProblemSet:
        """The problems that were kept. Repeated ones are reported in one warning.

        Raises:
            DataError: there are none.
        """
        if not self._rows:
            raise DataError(f"{self._name}: the data set is empty; it needs at least one problem")
        if self._num_duplicates:
            fate = "dropped" if self._deduplicate else "kept; deduplicate=True drops them"
            conflict = f", {self._num_conflicts} with another answer" if self._num_conflicts else ""
            _log.warning(
                "%s: %d rows repeat a problem (%d different problems%s); they are %s",
                self._name,
                self._num_duplicates,
                len(self._problems),
                conflict,
                fate,
            )
        rows = np.array(self._rows, dtype=np.uint32).reshape(-1, 4)
        kept = set(rows[:, _ANSWER].tolist())
        return ProblemSet(
            name=self._name,
            num_duplicates=self._num_duplicates,
            num_conflicts=self._num_conflicts,
            integer_answers=all(_is_integer(a) for a, i in self._answers.items() if i in kept),
            _problems=tuple(self._problems),
            _answers=tuple(self._answers),
            _files=tuple(self._files),
            _rows=rows,
            _columns=self._kept.finish(),
        )


def _is_integer(answer: str) -> bool:
    number = parse_gold(answer).number
    return number is not None and number.unit is None and number.value.denominator == 1


def _encoded(problem: str | Messages) -> str:
    """A problem as a string: "t" and its text, or "c" and the JSON of its chat."""
    return "t" + problem if isinstance(problem, str) else "c" + json.dumps(problem)


def _decoded(key: str) -> str | Messages:
    if key[0] == "t":
        return key[1:]
    messages: Messages = json.loads(key[1:])
    return messages
