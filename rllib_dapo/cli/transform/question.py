"""The outcome of a transformation: an added question with its integer answer, or a refusal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rllib_dapo.cli.transform.template import Template, describe, letters_for, sum_of
from rllib_dapo.errors import DAPOError

SEVERAL_ANSWERS: Final = "several answers"
NOT_SIMPLIFIED: Final = "not simplified"
NOT_EVALUATED: Final = "not evaluated"
IRRATIONAL_DENOMINATOR: Final = "root or pi in a denominator"
UNSUPPORTED_ROOT: Final = "nested or higher root"
SYMBOLIC: Final = "symbolic letters"
WORDS: Final = "words"
RELATION: Final = "equation or inequality"
SEVERAL_READINGS: Final = "several readings"
UNBOUNDED: Final = "infinite or undefined"
UNKNOWN_FORM: Final = "unknown form"
TOO_LARGE: Final = "too large"
UNREADABLE: Final = "unreadable row"


class RefusalError(DAPOError):
    """The error raised for an answer that no rule can turn into an integer.

    Args:
        reason: one of the constants in this module; the summary counts refusals by reason.
        detail: what in this answer led to the refusal.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[RefusalError], tuple[str, str]]:
        """Pickle the arguments; by default, pickle would pass only the joined message."""
        return type(self), (self.reason, self.detail)


MAX_PARTS = 12
"""The largest number of parts in an answer. The sum of more says little about the answer."""


@dataclass(frozen=True, slots=True)
class Transformed:
    """What turns a problem into one that asks for an integer.

    Attributes:
        form: the kind of the original answer, such as `root_sum`.
        question: the text to add to the problem; empty if the problem asks for an integer already.
        answer: the new answer.
        template: the form of the original answer with its parts; None if the new answer is not the
            sum of parts.
    """

    form: str
    question: str
    answer: int
    template: Template | None = None


def ask_for_parts(
    form: str, template: Template, problem: str, unit: str | None = None, note: str = ""
) -> Transformed:
    """Ask for the sum of the answer's parts.

    Args:
        form: the kind of the answer, which the summary counts by.
        template: the form of the answer with its parts.
        problem: the problem's text; the question uses other letters than this text.
        unit: the answer's unit in words, such as `in degrees`; None without a unit.
        note: a remark to add to the conditions, such as that i is the imaginary unit.

    Raises:
        RefusalError: the answer has too many parts.
    """
    count = len(template.parts)
    if count > MAX_PARTS:
        raise RefusalError(TOO_LARGE, f"an answer of {count} parts")
    letters = free_letters(count, problem)
    question = (
        f"The original answer{measured(unit)} is in the form ${template.show(letters)}$,"
        f" where {describe(template, letters)}{note}. Please find the value of {sum_of(letters)}."
    )
    return Transformed(form, question, template.total, template)


def free_letters(count: int, problem: str, preferred: str = "") -> list[str]:
    """Return `count` letters that the problem does not use, those of `preferred` first.

    Raises:
        RefusalError: the problem leaves fewer than `count` letters.
    """
    letters = letters_for(count, problem, preferred)
    if not letters:
        raise RefusalError(SYMBOLIC, "the problem leaves no letters for the parts of its answer")
    return letters


def ask(
    form: str, statement: str, request: str, answer: int, unit: str | None = None
) -> Transformed:
    """Ask for something other than the sum of the answer's parts.

    Args:
        form: the kind of the answer, which the summary counts by.
        statement: what the question says about the original answer, beginning with a verb.
        request: what to find, beginning with a verb.
        answer: the new answer.
        unit: the original answer's unit in words; None without a unit.
    """
    question = f"The original answer{measured(unit)} {statement}. Please {request}."
    return Transformed(form, question, answer)


def measured(unit: str | None) -> str:
    """Return a unit as an insertion such as `, in degrees,`; empty without a unit."""
    return "" if unit is None else f", {unit},"
