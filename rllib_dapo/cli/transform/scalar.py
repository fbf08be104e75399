r"""Exact numbers: sums of terms `c·\sqrt[k]{n}·\pi^p·i^j` with rational c."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

MAX_RADICAND = 10**8
"""Largest number under a root whose factors are looked for."""
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")


@dataclass(frozen=True, slots=True)
class Basis:
    r"""What a rational coefficient is multiplied with.

    Attributes:
        radicand: n of `\sqrt[index]{n}`, free of index-th powers; 1 without a root.
        index: 2 or 3.
        pi: exponent of pi, 0 to 3.
        imaginary: times i.
    """

    radicand: int = 1
    index: int = 2
    pi: int = 0
    imaginary: bool = False


ONE = Basis()
Term = tuple[Basis, Fraction]
Scalar = tuple[Term, ...]
"""Terms in the order they were printed, each basis once, no coefficient 0 (but 0 itself)."""


def approximate(scalar: Scalar) -> Decimal:
    """The value of a real scalar to about 50 digits, for comparisons."""
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
    """The value of a rational scalar; None for any other."""
    return scalar[0][1] if len(scalar) == 1 and scalar[0][0] == ONE else None


def is_power_free(number: int, power: int) -> bool:
    """Whether no prime's `power`-th power divides `number` (at most `MAX_RADICAND`)."""
    divisor = 2
    while divisor**power <= number:
        if number % divisor**power == 0:
            return False
        while number % divisor == 0:
            number //= divisor
        divisor += 1
    return True
