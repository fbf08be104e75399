"""A loaded data set: checked problems, with each text held once."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from rllib_dapo.data.chats import Messages, asked_text
from rllib_dapo.data.golds import gold_kind
from rllib_dapo.data.kept_columns import ColumnValues, Kept, KeptColumns
from rllib_dapo.data.load_report import (
    GOLD_KINDS,
    MOST_KEPT,
    BadRow,
    BadRowsError,
    ColumnsTaken,
    LoadReport,
    OnBadRow,
    list_bad_rows,
)
from rllib_dapo.data.readers import DatasetPart
from rllib_dapo.data.row_values import RowError
from rllib_dapo.errors import DataError
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
        """The problem's text; for a chat, the text of the last message of the user."""
        return self.problem if isinstance(self.problem, str) else asked_text(self.problem)


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
        report: what loading found: columns, bad rows, golds by kind.
    """

    name: str
    num_duplicates: int
    num_conflicts: int
    integer_answers: bool
    report: LoadReport
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

    def digests(self) -> npt.NDArray[np.uint64]:
        """uint64[len], a hash of each row's problem and ground truth, in order."""
        problems, answers = (
            np.array([_digest(text) for text in texts], dtype=np.uint64)
            for texts in (self._problems, self._answers)
        )
        odd = np.uint64(0x9E3779B97F4A7C15)  # keeps (a, b) and (b, a) apart
        mixed: npt.NDArray[np.uint64] = problems[self._rows[:, _PROBLEM]] * odd
        return mixed ^ answers[self._rows[:, _ANSWER]]

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
        on_bad_row: see `OnBadRow`.
    """

    def __init__(
        self,
        name: str,
        deduplicate: bool = False,
        limit: int | None = None,
        on_bad_row: OnBadRow = "error",
        kept: Kept | None = None,
    ) -> None:
        self._name = name
        self._deduplicate = deduplicate
        self._limit = limit
        self._on_bad_row = on_bad_row
        self._problems: dict[str, int] = {}  # from the encoded problem to its number
        self._answers: dict[str, int] = {}
        self._files: list[str] = []
        self._rows = array("I")  # four numbers for each row, as in ProblemSet
        self._first_answer = array("I")  # of each problem, to notice conflicts
        self._num_duplicates = 0
        self._num_conflicts = 0
        self._kept = KeptColumns(kept or {})
        self._num_read = 0
        self._num_bad = 0
        self._bad: list[BadRow] = []
        self._columns: dict[str, ColumnsTaken] = {}

    @property
    def full(self) -> bool:
        """Whether `limit` is reached."""
        return self._limit is not None and len(self._rows) >= 4 * self._limit

    def add_part(
        self,
        part: DatasetPart,
        problem_key: str | None = None,
        answer_key: str | None = None,
        problem_template: str | None = None,
    ) -> None:
        """Check and keep the rows of a part until the limit is reached. Bad rows are collected.

        Raises:
            DataError: the part cannot be read, or its problems would be posed by half.
        """
        self._files.append(part.name)
        for schema, number, row in part.rows(
            problem_key, answer_key, problem_template, self._kept.heads
        ):
            self._num_read += 1
            if part.name not in self._columns:
                self._columns[part.name] = schema.taken(row)
            try:
                problem, answer = schema.read(row)
                further = self._kept.read(row)
            except RowError as error:
                self._num_bad += 1
                if len(self._bad) < MOST_KEPT:
                    self._bad.append(_bad_row(part.where, number, error))
                continue
            except DataError as error:  # the layout, not the row
                raise DataError(f"{part.where}, row {number}, {error}") from error
            self._add(problem, answer, number, further)
            if self.full:
                return

    def _add(self, problem: str | Messages, answer: str, number: int, further: str) -> None:
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
            DataError: there are none, or some rows are bad and `on_bad_row` is `error`.
        """
        report = self._report()
        if self._num_bad and (self._on_bad_row == "error" or not self._rows):
            raise BadRowsError(self._refusal(), report)
        if not self._rows:
            raise DataError(f"{self._name}: the data set is empty; it needs at least one problem")
        self._warn(report)
        rows = np.array(self._rows, dtype=np.uint32).reshape(-1, 4)
        return ProblemSet(
            name=self._name,
            num_duplicates=self._num_duplicates,
            num_conflicts=self._num_conflicts,
            integer_answers=report.golds.get("integer", 0) == len(rows),
            report=report,
            _problems=tuple(self._problems),
            _answers=tuple(self._answers),
            _files=tuple(self._files),
            _rows=rows,
            _columns=self._kept.finish(),
        )

    def _refusal(self) -> str:
        if self._num_bad == 1 and self._rows:
            return str(self._bad[0])
        count = f"{self._num_bad} of {self._num_read} rows cannot be used"
        if len(self._bad) == 1:
            return f"{self._bad[0]} (no other row is usable)"
        remedy = "repair or remove them" + ("" if not self._rows else ", or set on_bad_row: skip")
        return f"{self._name}: {count}; {remedy}:\n{list_bad_rows(self._bad, self._num_bad)}"

    def _warn(self, report: LoadReport) -> None:
        if self._num_bad:
            _log.warning(
                "%s: %d of %d rows are left out, because they cannot be used:\n%s",
                self._name, self._num_bad, self._num_read, report.bad_lines,
            )  # fmt: skip
        if report.text_line:
            _log.warning("%s: %s", self._name, report.text_line)
        if self._num_duplicates:
            fate = "dropped" if self._deduplicate else "kept; deduplicate=True drops them"
            conflict = f", {self._num_conflicts} with another answer" if self._num_conflicts else ""
            _log.warning(
                "%s: %d rows repeat a problem (%d different problems%s); they are %s",
                self._name, self._num_duplicates, len(self._problems), conflict, fate,
            )  # fmt: skip

    def _report(self) -> LoadReport:
        rows = np.array(self._rows, dtype=np.uint32).reshape(-1, 4)
        numbers, first, counts = np.unique(rows[:, _ANSWER], return_index=True, return_counts=True)
        answers = tuple(self._answers)
        golds = dict.fromkeys(GOLD_KINDS, 0)
        text, source, earliest = "", "", len(rows)
        for number, row, count in zip(
            numbers.tolist(), first.tolist(), counts.tolist(), strict=True
        ):
            kind = gold_kind(answers[number])
            golds[kind] += count
            if kind == "text" and row < earliest:
                earliest, text = row, answers[number]
                source = f"{self._files[rows[row, 2]]}:{rows[row, 3]}"
        return LoadReport(
            name=self._name,
            columns=dict(self._columns),
            rows_read=self._num_read,
            rows_kept=len(rows),
            num_bad=self._num_bad,
            bad_rows=tuple(self._bad),
            num_duplicates=self._num_duplicates,
            num_dropped_duplicates=self._num_duplicates if self._deduplicate else 0,
            num_conflicts=self._num_conflicts,
            golds=golds,
            text_gold=text,
            text_gold_source=source,
        )


def _bad_row(where: str, number: int, error: RowError) -> BadRow:
    return BadRow(where, number, error.column, error.value, error.problem)


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _encoded(problem: str | Messages) -> str:
    """A problem as a string: "t" and its text, or "c" and the JSON of its chat."""
    return "t" + problem if isinstance(problem, str) else "c" + json.dumps(problem)


def _decoded(key: str) -> str | Messages:
    if key[0] == "t":
        return key[1:]
    messages: Messages = json.loads(key[1:])
    return messages
