r"""Rules for answers made of several scalars: points, intervals, unions, sets and matrices."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise

from rllib_dapo.cli.transform.question import (
    NOT_SIMPLIFIED,
    SEVERAL_ANSWERS,
    SEVERAL_READINGS,
    UNBOUNDED,
    UNKNOWN_FORM,
    RefusalError,
    Transformed,
    ask,
    ask_for_parts,
)
from rllib_dapo.cli.transform.scalar import Scalar, approximate, rational
from rllib_dapo.cli.transform.scalar_form import from_fraction, scalar_template
from rllib_dapo.cli.transform.scalar_reader import read_scalar
from rllib_dapo.cli.transform.template import Template, joined

_BRACKETED = re.compile(r"([\[(])([^\[\]()]*(?:\[3\][^\[\]()]*)*)([\])])\Z")
_MATRIX = re.compile(r"\\begin\{([pbv]?matrix)\}(.*)\\end\{\1\}\Z")
_INFINITY = re.compile(r"([+-]?)\s*\\infty\Z")


def collection(text: str, problem: str) -> Transformed | None:
    """Transform a point, an interval, a union of intervals, a set or a matrix.

    Returns:
        The new question and answer, or None if the text is none of these.

    Raises:
        RefusalError: the text is one of these, but no question about it has exactly one answer.
    """
    if "\\cup" in text:
        return _union(text, problem)
    if text.startswith("\\{") and text.endswith("\\}"):
        return _set(text[2:-2], problem)
    if match := _MATRIX.match(text):
        return _matrix(match[1], match[2], problem)
    if (match := _BRACKETED.match(text)) and "," in match[2]:
        entries = match[2].split(",")
        is_interval = match[1] + match[3] != "()" or "\\infty" in text
        if is_interval:
            return ask_for_parts("interval", _interval(match)[0], problem)
        return _point(entries, problem)
    if text.startswith("(") and re.search(r"\)\s*(?:,|\\text\{|and|or)\s*.*\(", text):
        raise RefusalError(SEVERAL_ANSWERS, "several points")
    return None


def _point(entries: list[str], problem: str) -> Transformed:
    scalars = [read_scalar(entry) for entry in entries]
    if any(basis.pi for scalar in scalars for basis, _ in scalar):
        raise RefusalError(SEVERAL_READINGS, "an angle in coordinates has several values")
    templates = [scalar_template(scalar) for scalar in scalars]
    separators = ["(", *[","] * (len(entries) - 1), ")"]
    return ask_for_parts("tuple", joined(templates, separators), problem)


Bound = Scalar | None
"""One end of an interval; None stands for infinity."""


def _interval(match: re.Match[str]) -> tuple[Template, Bound, Bound]:
    opening, inside, closing = match.groups()
    ends = inside.split(",")
    if len(ends) != 2:
        raise RefusalError(UNKNOWN_FORM, f"{len(ends)} numbers between unequal brackets")
    low, high = (_INFINITY.match(end.strip()) for end in ends)
    if (low and low[1] != "-") or (high and high[1] == "-") or (low and high):
        raise RefusalError(UNBOUNDED, "an interval without a finite end")
    if (low and opening == "[") or (high and closing == "]"):
        raise RefusalError(UNBOUNDED, "an interval that includes infinity")
    lower = None if low else read_scalar(ends[0])
    upper = None if high else read_scalar(ends[1])
    for bound in (lower, upper):
        if bound and any(basis.imaginary for basis, _ in bound):
            raise RefusalError(UNKNOWN_FORM, "a complex end of an interval")
    if lower and upper and approximate(lower) >= approximate(upper):
        raise RefusalError(UNKNOWN_FORM, "an interval whose ends are not in order")
    templates = [scalar_template(bound) for bound in (lower, upper) if bound]
    left, right = opening, closing
    if lower is None:
        left += "-\\infty,"
    if upper is None:
        right = ",\\infty" + right
    separators = [left, ",", right] if len(templates) == 2 else [left, right]
    return joined(templates, separators), lower, upper


def _union(text: str, problem: str) -> Transformed:
    intervals = []
    for piece in text.split("\\cup"):
        match = _BRACKETED.match(piece.strip())
        if match is None or "," not in match[2]:
            raise RefusalError(UNKNOWN_FORM, "a union of something other than intervals")
        intervals.append(_interval(match))
    for (_, _, upper), (_, lower, _) in pairwise(intervals):
        if upper is None or lower is None or approximate(upper) > approximate(lower):
            raise RefusalError(SEVERAL_READINGS, "a union whose intervals are not in order")
    templates = [template for template, _, _ in intervals]
    separators = ["", *["\\cup "] * (len(templates) - 1), ""]
    return ask_for_parts("interval_union", joined(templates, separators), problem)


def _set(inside: str, problem: str) -> Transformed:
    values = [_rational(entry) for entry in inside.split(",")]
    if len(set(values)) < len(values):
        raise RefusalError(NOT_SIMPLIFIED, "a set that names an element twice")
    return _sum_of("set", "a set of numbers", "its elements", sum(values, Fraction(0)), problem)


def _matrix(kind: str, inside: str, problem: str) -> Transformed:
    if kind == "vmatrix":
        raise RefusalError(UNKNOWN_FORM, "a determinant that is not worked out")
    rows = [row.split("&") for row in inside.rstrip("\\ ").split("\\\\")]
    if len({len(row) for row in rows}) > 1:
        raise RefusalError(UNKNOWN_FORM, "a matrix with rows of different lengths")
    total = sum((_rational(entry) for row in rows for entry in row), Fraction(0))
    what = "a column vector" if len(rows[0]) == 1 else "a matrix"
    return _sum_of("matrix", what, "its entries", total, problem)


def _sum_of(form: str, what: str, members: str, total: Fraction, problem: str) -> Transformed:
    if total.denominator == 1:
        return ask(form, f"is {what}", f"find the sum of {members}", int(total))
    asked = ask_for_parts(form, scalar_template(from_fraction(total)), problem)
    begin = f"The original answer is {what}. The sum of {members}"
    return Transformed(
        form, asked.question.replace("The original answer", begin, 1), asked.answer, asked.template
    )


def _rational(text: str) -> Fraction:
    value = rational(read_scalar(text))
    if value is None:
        raise RefusalError(UNKNOWN_FORM, "only rational members are added up")
    return value
