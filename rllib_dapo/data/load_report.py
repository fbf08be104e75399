"""What loading a data set found: the columns taken, the rows that are bad, the kinds of golds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from rllib_dapo.errors import DataError

OnBadRow = Literal["error", "skip"]
"""What happens to rows that cannot be used: `error` stops, `skip` drops and lists them."""

GoldKind = Literal["integer", "number", "letter", "value", "text"]
"""What a ground truth is to the graders: an integer, another number, the letter of a choice,
another value (a closed form, a tuple, an equation …), or a text that is compared word for word."""

GOLD_KINDS: tuple[GoldKind, ...] = get_args(GoldKind)
"""The kinds of ground truths, in the order in which they are shown."""

NUM_PRINTED = 10
"""The number of bad rows that a message names."""
MOST_KEPT = 100_000
"""The number of bad rows that a report holds at most; all are counted."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used.

    Attributes:
        file: the file (or split), as messages call it.
        row: its number, from 1.
        column: the column of the value that cannot be used; "" if the row itself is malformed.
        value: what was found there, cut to a readable length; "" if nothing can be shown.
        reason: what is wrong with it, and the remedy.
    """

    file: str
    row: int
    column: str
    value: str
    reason: str

    def __str__(self) -> str:
        """The row, its place and the reason as one line."""
        place = f"row {self.row}, column {self.column!r}" if self.column else f"row {self.row}"
        return f"{self.file}, {place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ColumnsTaken:
    """Where problems and ground truths were read.

    Attributes:
        problem: the column of the problem, or the template over columns that made it.
        answer: the column of the ground truth.
        rule: the layout that was recognised, such as "multiple choice"; "" for plain columns.
        unused: the other columns of the file.
    """

    problem: str
    answer: str
    rule: str = ""
    unused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What loading one data set found.

    Attributes:
        name: the data set.
        columns: the columns taken of each part (a file or a split), by the part's name.
        rows_read: the number of rows that were looked at.
        rows_kept: the number of problems, which is the length of the `ProblemSet`.
        num_bad: the number of rows that cannot be used.
        bad_rows: these rows, the first `MOST_KEPT` of them.
        num_duplicates: the number of rows whose problem occurred before.
        num_dropped_duplicates: how many of these were dropped (`deduplicate`).
        num_conflicts: how many of these have another answer than the first row.
        golds: the number of kept rows for each kind of ground truth.
        text_gold: a ground truth that is compared word for word, if there is one.
        text_gold_source: `file:row` of that ground truth.
    """

    name: str
    columns: Mapping[str, ColumnsTaken] = field(default_factory=dict)
    rows_read: int = 0
    rows_kept: int = 0
    num_bad: int = 0
    bad_rows: tuple[BadRow, ...] = ()
    num_duplicates: int = 0
    num_dropped_duplicates: int = 0
    num_conflicts: int = 0
    golds: Mapping[GoldKind, int] = field(default_factory=dict)
    text_gold: str = ""
    text_gold_source: str = ""

    @property
    def text_line(self) -> str:
        """One line on the ground truths that are compared word for word; "" if there are none."""
        count = self.golds.get("text", 0)
        if not count:
            return ""
        return (
            f"{count} of {self.rows_kept} ground truths can only be matched word for word, for"
            f" instance {self.text_gold!r:.80} ({self.text_gold_source})"
        )

    @property
    def bad_lines(self) -> str:
        """The first bad rows, one a line, and how many more there are; "" if there are none."""
        return list_bad_rows(self.bad_rows, self.num_bad)


class BadRowsError(DataError):
    """A data set has rows that cannot be used, and `on_bad_row` is `error`.

    Args:
        message: the message, which lists the first of the bad rows.
        report: the report, whose `bad_rows` are all of them.
    """

    def __init__(self, message: str, report: LoadReport) -> None:
        super().__init__(message)
        self.message = message
        self.report = report

    def __reduce__(self) -> tuple[type[BadRowsError], tuple[str, LoadReport]]:
        """Pickle the arguments, because Ray sends errors from process to process."""
        return type(self), (self.message, self.report)


def list_bad_rows(rows: Iterable[BadRow], count: int) -> str:
    """The first bad rows, one a line, and how many more there are."""
    shown = [str(row) for row, _ in zip(rows, range(NUM_PRINTED), strict=False)]
    more = [f"… and {count - len(shown)} more"] if count > len(shown) else []
    return "\n".join(f"  {line}" for line in shown + more)
