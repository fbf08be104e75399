"""Compare rational expressions exactly, in a time linear in their length.

Two rational expressions that are equal at a random point are taken to be the same function. The
probability that this is wrong is at most degree / p (Schwartz 1980, Zippel 1979). The points are
residues modulo a prime p of 255 bits, so no number grows, however large an exponent is. The
constants e and π count as variables.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from rllib_dapo.rewards.grading.equality import Real
from rllib_dapo.rewards.grading.trees import Tree, number

PRIME: Final = 2**255 - 19
"""The modulus p. Because p ≡ 1 (mod 4), −1 has a square root, which stands for i."""
_IMAGINARY = pow(2, (PRIME - 1) // 4, PRIME)
_POINTS = 2


class NotRationalError(ValueError):
    """The expression is not rational, or it divides by zero at the point."""


class RationalArithmetic:
    """Compares rational expressions, and raises `NotRationalError` for any other."""

    def same(self, answer: Tree, gold: Tree) -> bool:
        """Return whether the two are equal at every point tried."""
        return all(residue(answer, k) == residue(gold, k) for k in range(_POINTS))

    def proportional(self, answer: Tree, gold: Tree, *, positive: bool) -> bool:
        """Return whether the ratio is the same at every point tried, and neither 0 nor ∞."""
        if positive:
            raise NotRationalError("residues have no sign")
        values = [(residue(answer, k), residue(gold, k)) for k in range(_POINTS + 1)]
        (a, g), *others = values
        return bool(a and g) and all((a * y - g * x) % PRIME == 0 for x, y in others)

    def place(self, tree: Tree) -> Real:
        """Return the value of a literal."""
        value = number(tree)
        if value is None:
            raise NotRationalError(f"no literal: {tree[0]}")
        return value


def residue(tree: Tree, point: int) -> int:
    """Compute the value modulo `PRIME` at point number `point`.

    Raises:
        NotRationalError: the tree is not rational, or it divides by zero at this point.
    """
    head = tree[0]
    if head == "num":
        value = Fraction(tree[1])
        return value.numerator * _inverse(value.denominator) % PRIME
    if head in ("var", "const"):
        return _IMAGINARY if tree[1] == "i" and head == "const" else _chance(tree, point)
    if head == "^":
        return _power(residue(tree[1], point), number(tree[2]))
    if head not in _OPERATIONS:
        raise NotRationalError(f"no rational operation: {head}")
    return _OPERATIONS[head]([residue(part, point) for part in tree[1:]]) % PRIME


_OPERATIONS: dict[str, Callable[[list[int]], int]] = {
    "+": sum,
    "neg": lambda values: -values[0],
    "*": lambda values: functools.reduce(lambda a, b: a * b % PRIME, values),
    "/": lambda values: values[0] * _inverse(values[1]),
}


def _chance(tree: Tree, point: int) -> int:
    text = f"{point}:{tree[0]}:{tree[1]}"
    digest = hashlib.blake2b(text.encode(), digest_size=32).digest()
    return int.from_bytes(digest, "big") % PRIME


def _power(base: int, exponent: Fraction | None) -> int:
    if exponent is None or exponent.denominator > 1:
        raise NotRationalError("an exponent is not an integer")
    return pow(_inverse(base) if exponent < 0 else base, abs(exponent.numerator), PRIME)


def _inverse(value: int) -> int:
    if value % PRIME == 0:
        raise NotRationalError("the expression divides by zero")
    return pow(value, -1, PRIME)
