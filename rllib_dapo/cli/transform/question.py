"""The outcome of a transformation: an added sentence and a new answer, or a refusal."""

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
    """An answer that no rule may turn into an integer.

    Args:
        reason: one of the constants of this module; the summary counts by it.
        detail: what exactly stood in the way.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[RefusalError], tuple[str, str]]:
        """Pickle by parts."""
        return type(self), (self.reason, self.detail)


MAX_PARTS = 12
"""Most parts of an answer: beyond it the sum says little about the answer."""


@dataclass(frozen=True, slots=True)
class Transformed:
    """A problem made to ask for an integer.

    Attributes:
        form: the kind of the original answer, such as `root_sum`.
        question: what is added to the problem's text; empty when it already asks for one.
        answer: the integer.
        template: the form with the answer's parts; None where there are none.
    """

    form: str
    question: str
    answer: int
    template: Template | None = None


def ask_for_parts(
    form: str, template: Template, problem: str, unit: str | None = None, note: str = ""
) -> Transformed:
    """Ask for the sum of the parts.

    Args:
        form: the kind, for the summary.
        template: the form of the answer.
        problem: the problem's text, whose letters are avoided.
        unit: what the answer is measured in, in words.
        note: another condition, such as that i is the imaginary unit.

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
    """Letters that the problem does not use.

    Raises:
        RefusalError: it uses nearly all.
    """
    letters = letters_for(count, problem, preferred)
    if not letters:
        raise RefusalError(SYMBOLIC, "the problem leaves no letters for the parts of its answer")
    return letters


def ask(
    form: str, statement: str, request: str, answer: int, unit: str | None = None
) -> Transformed:
    """Ask for something else than a sum of parts."""
    question = f"The original answer{measured(unit)} {statement}. Please {request}."
    return Transformed(form, question, answer)


def measured(unit: str | None) -> str:
    """`, measured in degrees,`."""
    return "" if unit is None else f", {unit},"
