r"""Rules that turn a problem with any answer into a problem whose answer is an integer.

The paper's example: for the answer `11-2\sqrt{6}`, the rules add the text "The original answer
is in the form $k-m\sqrt{n}$, … Please find the value of $k+m+n$." to the problem, and the new
answer is 19. The rules compute with exact numbers only. They do not work out unevaluated
expressions, and they refuse every answer that can be read in two ways.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import gcd

from rllib_dapo.cli.transform.collection_form import collection
from rllib_dapo.cli.transform.literal_form import (
    base,
    decimal,
    factorial,
    logarithm,
    polynomial,
    power,
    ratio,
    repeating_decimal,
    scientific,
    time_of_day,
)
from rllib_dapo.cli.transform.printed import printed, split_unit, unit_phrase, without_groups
from rllib_dapo.cli.transform.question import (
    NOT_EVALUATED,
    NOT_SIMPLIFIED,
    RELATION,
    SEVERAL_ANSWERS,
    SYMBOLIC,
    TOO_LARGE,
    UNBOUNDED,
    UNKNOWN_FORM,
    WORDS,
    RefusalError,
    Transformed,
    ask_for_parts,
    measured,
)
from rllib_dapo.cli.transform.scalar import Scalar
from rllib_dapo.cli.transform.scalar_form import (
    MAX_TERMS,
    from_fraction,
    scalar_name,
    scalar_template,
)
from rllib_dapo.cli.transform.scalar_reader import read_scalar
from rllib_dapo.rewards.grading.literals import Number, TooLargeError, parse_number

MAX_ANSWER = 300
"""The length of the longest answer that is read, in characters."""

_LITERALS: tuple[Callable[[str, str | None, str], Transformed | None], ...] = (
    base,
    ratio,
    decimal,
    repeating_decimal,
    scientific,
    power,
    factorial,
    logarithm,
)
_RELATION = re.compile(
    r"[=<>]|\\(?:le|ge|ne|leq|geq|neq|lt|gt|approx|equiv|in|sim|to|mapsto)(?![A-Za-z])"
)
_SEVERAL = re.compile(r"\\pm(?![A-Za-z])|±|\\mp(?![A-Za-z])|\b(?:or|and)\b|[,;]")
_UNBOUNDED = re.compile(r"\\infty|(?i:undefined|infinit|does not exist|no solution)|\\emptyset")
_FUNCTION = re.compile(r"\\(sin|cos|tan|cot|sec|csc|arc[a-z]+|log|exp|sum|int|prod|lim|binom)")
_WORD = re.compile(r"\\(?:text|mathrm|textbf|mbox)|(?<![\\A-Za-z])[A-Za-z]{2,}")
_MIXED = re.compile(r"-?[0-9]+ [0-9]+/[0-9]+\Z")
# 4.5e33 is 4.5 times a power of 10, like its LaTeX form, and no integer of 34 digits.
_EXPONENT = re.compile(r"(?<![0-9A-Za-z])(-?[0-9]+(?:\.[0-9]+)?)[eE]\+?(-?[0-9]+)(?![0-9A-Za-z_])")
# Numbers that are no literals of digits alone; each has a rule of its own.
_COMPOSED = re.compile(r"\\(?:times|cdot|overline|bar|dot)(?![A-Za-z])|[×·*]")
_CHOICE = re.compile(r"\(?[A-J]\)?\Z")
_COMPLEX = re.compile(
    r"(?i:complex|imaginary)|i\s*\^\s*\{?2|(?<![A-Za-z\\])i(?![A-Za-z]).{0,20}\\sqrt\{-1\}"
    r"|\\sqrt\{-1\}"
)


def transform_answer(problem: str, answer: str) -> Transformed:
    """Turn an answer into an integer.

    Args:
        problem: the problem's text. The new question uses other letters than this text, and
            this text tells what a letter in the answer means.
        answer: the answer, as the data set has it.

    Returns:
        The sentences to add to the problem, and the new answer.

    Raises:
        RefusalError: no rule can read the answer in exactly one way.
    """
    if len(answer) > MAX_ANSWER:
        raise RefusalError(TOO_LARGE, f"an answer of {len(answer)} characters")
    if answer.count("{") != answer.count("}") or sum(map(answer.count, "([")) != sum(
        map(answer.count, ")]")
    ):
        raise RefusalError(UNKNOWN_FORM, "brackets that do not match")
    text = _EXPONENT.sub(r"\1\\times 10^{\2}", printed(answer))
    number = _number(text)
    if number is not None and number.value.denominator == 1:
        return _integer(number, text, problem)
    if number is not None and _MIXED.match(text):
        return _mixed(number, text, problem)
    found = collection(text, problem)
    if found is None:
        _refuse_relations(text)
        found = time_of_day(text, None, problem)
    found = found or _measured(text, problem)
    if found.form == "polynomial" and "=" in answer:
        raise RefusalError(RELATION, "an equation, which can be written in several ways")
    return found


def _measured(text: str, problem: str) -> Transformed:
    """Transform an answer that is one number, perhaps with a unit, or a polynomial."""
    text, unit = _prefix_currency(text)
    if unit is None:
        text, unit = split_unit(text)
    text = without_groups(text)
    for rule in _LITERALS:
        if found := rule(text, unit, problem):
            return found
    _refuse_several(text)
    return polynomial(text, unit, problem) or _scalar(text, unit, problem)


def _mixed(number: Number, text: str, problem: str) -> Transformed:
    """Transform a mixed number such as `3 4/5`."""
    if gcd(*map(int, text.split()[-1].split("/"))) > 1:
        raise RefusalError(NOT_SIMPLIFIED, "a fraction not in lowest terms")
    return ask_for_parts("fraction", scalar_template(from_fraction(number.value)), problem)


def _number(text: str) -> Number | None:
    if _COMPOSED.search(text):
        return None
    try:
        return parse_number(text)
    except TooLargeError as error:
        raise RefusalError(TOO_LARGE, str(error)) from error


def _integer(number: Number, text: str, problem: str) -> Transformed:
    """Keep an integer as it is; if it has a unit, ask for the integer without the unit."""
    value = int(number.value)
    if number.unit is None:
        return Transformed("integer", "", value)
    letter = re.search(r"[0-9]\s?([a-zA-Z])\Z", text)
    if letter and re.search(rf"(?<![A-Za-z\\]){letter[1]}(?![A-Za-z])", problem):
        raise RefusalError(SYMBOLIC, f"{letter[1]} may be a unit or a letter of the problem")
    phrase = unit_phrase(number.unit)
    question = (
        f"The original answer{measured(phrase)} is an integer."
        f" Please give this integer alone, without the unit."
    )
    return Transformed("integer_with_unit", question, value)


def _scalar(text: str, unit: str | None, problem: str) -> Transformed:
    scalar = _read(text)
    if len(scalar) > MAX_TERMS:
        raise RefusalError(UNKNOWN_FORM, f"a sum of {len(scalar)} terms")
    note = ""
    if any(basis.imaginary for basis, _ in scalar):
        if not _COMPLEX.search(problem):
            raise RefusalError(SYMBOLIC, "the letter i in a problem without complex numbers")
        note = " ($i$ is the imaginary unit)"
    template = scalar_template(scalar)
    if template.parts[0].role == "integer":
        raise RefusalError(NOT_EVALUATED, "an integer that is not printed as one")
    return ask_for_parts(scalar_name(scalar), template, problem, unit, note)


def _read(text: str) -> Scalar:
    try:
        return read_scalar(text)
    except RefusalError:
        # The message names what a person sees in the answer, not the token at which parsing failed.
        if match := _FUNCTION.search(text):
            raise RefusalError(UNKNOWN_FORM, f"the function {match[1]}") from None
        if _CHOICE.match(text):
            raise RefusalError(WORDS, f"the choice {text}") from None
        if match := _WORD.search(text):
            raise RefusalError(WORDS, f"found {match.group()!r}") from None
        raise


def _refuse_relations(text: str) -> None:
    if match := _UNBOUNDED.search(text):
        raise RefusalError(UNBOUNDED, f"found {match.group()!r}")
    if match := _RELATION.search(text):
        raise RefusalError(RELATION, f"found {match.group()!r}")


def _refuse_several(text: str) -> None:
    if match := _SEVERAL.search(text):
        raise RefusalError(SEVERAL_ANSWERS, f"found {match.group()!r}")


def _prefix_currency(text: str) -> tuple[str, str | None]:
    r"""Split a leading currency sign off: `\$12.50` gives `12.50` and `in dollars`."""
    number = None
    if text.startswith(("\\$", "€", "£", "¥", "$")):
        number = _number(text)
    if number is None:
        return text, None
    return text.lstrip("\\$€£¥ "), unit_phrase(number.unit)
