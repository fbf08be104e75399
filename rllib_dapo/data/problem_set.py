"""What a data set is once it is loaded: checked problems, each text held once."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from rllib_dapo.data.schemas import Messages, RowError, Schema, detect_schema
from rllib_dapo.errors import DataError
from rllib_dapo.rewards.grading.grade import parse_gold
from rllib_dapo.types import IntArray

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
        integer_answers: whether every ground truth is an integer without a unit.
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
        "integer_answers",
        "name",
        "num_conflicts",
        "num_duplicates",
    )

    def __init__(self, builder: ProblemSetBuilder) -> None:
        set_once = object.__setattr__
        for name in ("name", "num_duplicates", "num_conflicts", "integer_answers"):
            set_once(self, name, getattr(builder, name))
        for name in ("files", "problems", "answers"):
            set_once(self, "_" + name, tuple(getattr(builder, name)))
        for name in ("problem_of", "answer_of", "file_of", "row_of"):
            set_once(self, "_" + name, getattr(builder, name))

    name: str
    num_duplicates: int
    num_conflicts: int
    integer_answers: bool
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
        return Problem(
            _decoded(self._problems[self._problem_of[index]]),
            self._answers[self._answer_of[index]],
            f"{self._files[self._file_of[index]]}:{self._row_of[index]}",
        )

    @property
    def num_distinct(self) -> int:
        """Number of different problems."""
        return len(self._problems)

    @property
    def distinct_of(self) -> IntArray:
        """int64[len], of each row the number of its problem among the different ones.

        They are numbered 0, 1, 2, … as they first occur.
        """
        return np.frombuffer(self._problem_of, dtype=np.uint32).astype(np.int64)

    def distinct_texts(self) -> Iterator[str]:
        """The text of each different problem, in the order of their numbers."""
        for key in self._problems:
            yield Problem(_decoded(key), "", "").text

    def __repr__(self) -> str:
        return f"ProblemSet({self.name!r}, {len(self)} problems, {self.num_distinct} different)"


class ProblemSetBuilder:
    """Collects rows, checking each.

    Args:
        name: where they come from.
        problem_key: column of the problem; None recognises the common ones.
        answer_key: column of the ground truth, likewise.
        deduplicate: keep only the first row of each problem.
        limit: how many to keep; None for all.
    """

    def __init__(
        self,
        name: str,
        *,
        problem_key: str | None = None,
        answer_key: str | None = None,
        deduplicate: bool = False,
        limit: int | None = None,
    ) -> None:
        self.name = name
        self.keys = (problem_key, answer_key)
        self.deduplicate = deduplicate
        self.limit = limit
        self.files: list[str] = []
        self.problems: dict[str, int] = {}  # "t" + text, or "c" + JSON of a chat -> number
        self.answers: dict[str, int] = {}
        self.first_answer = array("I")  # of each problem, to notice conflicts
        self.problem_of, self.answer_of = array("I"), array("I")
        self.file_of, self.row_of = array("I"), array("I")
        self.num_duplicates = 0
        self.num_conflicts = 0
        self.integer_answers = True

    @property
    def full(self) -> bool:
        """Whether `limit` is reached."""
        return self.limit is not None and len(self.problem_of) >= self.limit

    def schema_for(self, columns: list[str], where: str) -> Schema:
        """Choose the columns of a file.

        Raises:
            DataError: there is none to choose; `where` stands at the beginning.
        """
        try:
            return detect_schema(columns, *self.keys)
        except DataError as error:
            raise DataError(f"{where}, row 1: {error}") from error

    def add(self, schema: Schema, row: Mapping[str, Any], number: int, where: str) -> None:
        """Check and keep row `number` of the last of `files`.

        Raises:
            DataError: the row cannot be used; the message begins with `where`.
        """
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
        """The problems kept; repeated ones are reported once.

        Raises:
            DataError: there are none.
        """
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
        kept = set(self.answer_of)
        self.integer_answers = all(_is_integer(a) for a, i in self.answers.items() if i in kept)
        return ProblemSet(self)


def _is_integer(answer: str) -> bool:
    number = parse_gold(answer).number
    return number is not None and number.unit is None and number.value.denominator == 1


def _decoded(key: str) -> str | Messages:
    if key[0] == "t":
        return key[1:]
    messages: Messages = json.loads(key[1:])
    return messages


def _unpickle(state: dict[str, Any]) -> ProblemSet:
    problems = ProblemSet.__new__(ProblemSet)
    for name, value in state.items():
        object.__setattr__(problems, name, value)
    return problems
