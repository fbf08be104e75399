"""The outcome of a transformation: the sentence added to a problem, and the new answer."""

from __future__ import annotations

from dataclasses import dataclass

from rllib_dapo.cli.transform.refusal import SYMBOLIC, TOO_LARGE, RefusalError
from rllib_dapo.cli.transform.template import Template, describe, letters_for, sum_of

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
