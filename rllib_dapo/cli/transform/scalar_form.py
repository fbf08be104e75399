r"""Builds the form of one scalar, such as `\frac{m}{n}`, `k-m\sqrt{n}`, `n\pi` or `m+ni`.

Only one choice of integers for the letters gives the value, however a solver arrives at it:
distinct square-free roots are linearly independent over the rationals, pi is transcendental, and
all terms share their least common denominator. The form contains the signs, as in the paper, so
that the letters are positive; only a lone integer inside a tuple or an interval may be negative.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm

from rllib_dapo.cli.transform.scalar import ONE, Scalar
from rllib_dapo.cli.transform.template import AnswerPart, Piece, Role, Template

MAX_TERMS = 3
"""The largest number of terms in a scalar. The question would be unnatural with more."""


def scalar_template(scalar: Scalar) -> Template:
    """Return the form of a scalar, with its parts."""
    if len(scalar) == 1 and scalar[0][0] == ONE and scalar[0][1].denominator == 1:
        return Template((AnswerPart(int(scalar[0][1]), "integer"),))
    denominator = lcm(*(factor.denominator for _, factor in scalar))
    single_negative = len(scalar) == 1 and scalar[0][1] < 0
    pieces: list[Piece] = ["-"] if single_negative else []
    numerator: list[Piece] = []
    for number, (basis, factor) in enumerate(scalar):
        whole = factor * denominator
        if number:
            numerator.append("-" if whole < 0 else "+")
        elif whole < 0 and not single_negative:
            numerator.append("-")
        size = abs(int(whole))
        if basis.radicand == 1 or size > 1:
            numerator.append(AnswerPart(size))
        if basis.radicand > 1:
            role: Role = "square-free" if basis.index == 2 else "cube-free"
            opening = "\\sqrt{" if basis.index == 2 else "\\sqrt[3]{"
            numerator += [opening, AnswerPart(basis.radicand, role), "}"]
        if basis.pi:
            numerator.append("\\pi" if basis.pi == 1 else f"\\pi^{basis.pi}")
        if basis.imaginary:
            numerator.append("i")
    if denominator > 1:
        pieces += ["\\frac{", *numerator, "}{", AnswerPart(denominator), "}"]
    else:
        pieces += numerator
    return _with_conditions(tuple(pieces), scalar, denominator)


def _with_conditions(pieces: tuple[Piece, ...], scalar: Scalar, denominator: int) -> Template:
    parts = [piece for piece in pieces if isinstance(piece, AnswerPart)]
    positive = tuple(i for i, part in enumerate(parts) if part.role == "positive")
    roots = tuple(i for i, part in enumerate(parts) if part.role == "square-free")
    # A coefficient of 1 is not printed. The greatest common divisor is then 1 without a condition.
    every_coefficient = len(positive) == len(scalar) + (denominator > 1)
    coprime = (positive,) if denominator > 1 and every_coefficient else ()
    return Template(pieces, coprime, (roots,) if len(roots) > 1 else ())


def scalar_name(scalar: Scalar) -> str:
    """Return the kind of a scalar, which the summary counts by, such as `root_sum`."""
    bases = [basis for basis, _ in scalar]
    whole = all(factor.denominator == 1 for _, factor in scalar)
    roots = any(basis.radicand > 1 for basis in bases)
    if any(basis.imaginary for basis in bases):
        name = "complex"
    elif any(basis.pi for basis in bases):
        name = "pi"
    elif roots:
        name = "root" if len(bases) == 1 else "root_sum"
    else:
        return "integer" if whole else "fraction"
    return name if whole else name + "_fraction"


def from_fraction(value: Fraction) -> Scalar:
    """Return a rational number as a scalar."""
    return ((ONE, value),)
