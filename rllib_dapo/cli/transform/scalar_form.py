r"""The form of one scalar: `\frac{m}{n}`, `k-m\sqrt{n}`, `\frac{m\sqrt{n}}{k}`, `n\pi`, `m+ni`.

The letters stand for the canonical parts of the value: square roots linearly independent
over the rationals, pi transcendental, everything over one least denominator. So the parts
are unique, however the answer is arrived at. Signs are printed in the form, as the paper
does; letters are positive, except a lone integer inside a tuple or an interval.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm

from rllib_dapo.cli.transform.scalar import ONE, Scalar
from rllib_dapo.cli.transform.template import Part, Piece, Role, Template

MAX_TERMS = 3
"""Terms of a scalar: more make a question that nobody would ask."""


def scalar_template(scalar: Scalar) -> Template:
    """The form of a scalar, with its parts."""
    if len(scalar) == 1 and scalar[0][0] == ONE and scalar[0][1].denominator == 1:
        return Template((Part(int(scalar[0][1]), "integer"),))
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
            numerator.append(Part(size))
        if basis.radicand > 1:
            role: Role = "square-free" if basis.index == 2 else "cube-free"
            opening = "\\sqrt{" if basis.index == 2 else "\\sqrt[3]{"
            numerator += [opening, Part(basis.radicand, role), "}"]
        if basis.pi:
            numerator.append("\\pi" if basis.pi == 1 else f"\\pi^{basis.pi}")
        if basis.imaginary:
            numerator.append("i")
    if denominator > 1:
        pieces += ["\\frac{", *numerator, "}{", Part(denominator), "}"]
    else:
        pieces += numerator
    return _with_conditions(tuple(pieces), scalar, denominator)


def _with_conditions(pieces: tuple[Piece, ...], scalar: Scalar, denominator: int) -> Template:
    parts = [piece for piece in pieces if isinstance(piece, Part)]
    positive = tuple(i for i, part in enumerate(parts) if part.role == "positive")
    roots = tuple(i for i, part in enumerate(parts) if part.role == "square-free")
    # A coefficient of 1 is not printed, and then the common divisor is 1 anyway.
    every_coefficient = len(positive) == len(scalar) + (denominator > 1)
    coprime = (positive,) if denominator > 1 and every_coefficient else ()
    return Template(pieces, coprime, (roots,) if len(roots) > 1 else ())


def scalar_name(scalar: Scalar) -> str:
    """The kind of a scalar, for the summary."""
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
    """A rational number as a scalar."""
    return ((ONE, value),)
