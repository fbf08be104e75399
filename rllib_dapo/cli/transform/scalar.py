r"""Scalars: exact numbers that are sums of terms `c·\sqrt[k]{n}·\pi^p·i^j` with rational c."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

MAX_RADICAND = 10**8
"""The largest number under a root; checking larger ones for square factors would take long."""
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")


@dataclass(frozen=True, slots=True)
class Basis:
    r"""The irrational or imaginary factor of a term, beside its rational coefficient.

    Attributes:
        radicand: the n in `\sqrt[index]{n}`, which no index-th power of a prime divides; 1 if there
            is no root.
        index: the index of the root, 2 or 3.
        pi: the exponent of pi, 0 to 3.
        imaginary: whether i is a factor.
    """

    radicand: int = 1
    index: int = 2
    pi: int = 0
    imaginary: bool = False


ONE = Basis()
Term = tuple[Basis, Fraction]
Scalar = tuple[Term, ...]
"""The terms in the order in which they were printed. Each basis occurs once, and no coefficient is
0, except in the number 0 itself."""


def approximate(scalar: Scalar) -> Decimal:
    """Return the value of a real scalar to about 50 digits, for comparisons.

    Raises:
        ValueError: the scalar is complex.
    """
    with localcontext() as context:
        context.prec = 60
        total = Decimal(0)
        for basis, factor in scalar:
            if basis.imaginary:
                raise ValueError("complex numbers have no order")
            value = Decimal(factor.numerator) / Decimal(factor.denominator) * _PI**basis.pi
            if basis.index == 3:
                value *= Decimal(basis.radicand) ** (Decimal(1) / 3)
            else:
                value *= Decimal(basis.radicand).sqrt()
            total += value
        return total


def rational(scalar: Scalar) -> Fraction | None:
    """Return the value of a rational scalar, or None for any other scalar."""
    return scalar[0][1] if len(scalar) == 1 and scalar[0][0] == ONE else None


def is_power_free(number: int, power: int) -> bool:
    """Tell whether no prime's `power`-th power divides `number` (at most `MAX_RADICAND`)."""
    divisor = 2
    while divisor**power <= number:
        if number % divisor**power == 0:
            return False
        while number % divisor == 0:
            number //= divisor
        divisor += 1
    return True
