"""Compare expressions with roots, powers and functions by their values to many digits.

Two expressions count as equal if they agree at several points, positive and negative ones, to
at least 40 digits more than the expressions themselves contain. Simplifying by rules would leave
some cases undecided, and a rule could be wrong; comparing values avoids both. Values can be
astronomical (9^(9^(9^9))), so they are computed in a worker that can be killed (see `pool`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from mpmath import MPContext  # type: ignore[import-untyped]

from rllib_dapo.rewards.grading.equality import Real
from rllib_dapo.rewards.grading.rational import NotRationalError, RationalArithmetic
from rllib_dapo.rewards.grading.trees import Tree, number, walk

_DIGITS = 60
_SPARE = 20  # Rounding may cost this many digits.
# For each point: the sign of one half of the variables, and the sign of the other half.
_SIGNS = ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 1))
_PLACE_DIGITS = 40
_NAMES = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "ln": "log", "lg": "log10"}
_NAMES |= {"abs": "fabs", "!": "factorial"}


class NumericArithmetic:
    """Compares any two scalars, and compares rational ones exactly."""

    def __init__(self) -> None:
        self._context = context = MPContext()
        self._exact = RationalArithmetic()
        self._operations: dict[str, Callable[[list[Any]], Any]] = {
            "+": context.fsum,
            "*": context.fprod,
            "neg": lambda values: -values[0],
            "/": lambda values: values[0] / values[1],
            "binom": lambda values: context.binomial(*values),
        }

    def same(self, answer: Tree, gold: Tree) -> bool:
        """Return whether the two agree at every point where at least one has a value.

        The result is False if neither has a value at any point.
        """
        try:
            return self._exact.same(answer, gold)
        except NotRationalError:
            pass
        seen = False
        for x, y in self._values(answer, gold):
            if x is None and y is None:
                continue
            if x is None or y is None or not self._close(x, y):
                return False
            seen = True
        return seen

    def proportional(self, answer: Tree, gold: Tree, *, positive: bool) -> bool:
        """Return whether the ratio of the two is the same real number at all points."""
        try:
            if not self._exact.proportional(answer, gold, positive=False):
                return False
        except NotRationalError:
            pass
        ratios = []
        for x, y in self._values(answer, gold):
            if not x or not y:
                return False
            ratios.append(x / y)
        first = ratios[0]
        if self._context.im(first) or (positive and self._context.re(first) < 0):
            return False
        return all(self._close(first, ratio) for ratio in ratios)

    def place(self, tree: Tree) -> Real:
        """Compute the value to 40 decimal places.

        Raises:
            ValueError: the value is not real, or not finite.
        """
        self._context.dps = _precision(tree)
        value = self._evaluate(tree, 0)
        if self._context.im(value) or not self._context.isfinite(value):
            raise ValueError("the value is not a real number")
        return Fraction(int(self._context.nint(value * 10**_PLACE_DIGITS)), 10**_PLACE_DIGITS)

    def _values(self, answer: Tree, gold: Tree) -> list[tuple[Any, Any]]:
        self._context.dps = max(_precision(answer), _precision(gold))
        points = range(len(_SIGNS))
        return [(self._value(answer, k), self._value(gold, k)) for k in points]

    def _value(self, tree: Tree, point: int) -> Any:
        """Return the value at a point, or None if the tree has no value there."""
        try:
            value = self._evaluate(tree, point)
        except (ZeroDivisionError, ValueError):
            return None
        return value if self._context.isfinite(value) else None

    def _close(self, x: Any, y: Any) -> bool:
        tolerance = self._context.mpf(10) ** (_SPARE - self._context.dps)
        return bool(abs(x - y) <= tolerance * max(abs(x), abs(y)))

    def _evaluate(self, tree: Tree, point: int) -> Any:
        context, head = self._context, tree[0]
        if head == "num":
            value = Fraction(tree[1])
            return context.mpf(value.numerator) / value.denominator
        if head == "const":
            return {"pi": +context.pi, "e": +context.e, "i": context.j}[tree[1]]
        if head == "var":
            return self._coordinate(tree[1], point)
        values = [self._evaluate(part, point) for part in tree[1:] if isinstance(part, tuple)]
        if head == "^":
            return self._power(values, number(tree[2]))
        if head in ("root", "fn"):
            return (self._root if head == "root" else self._call)(values[0], tree[1])
        return self._operations[head](values)

    def _power(self, values: list[Any], literal: Fraction | None) -> Any:
        base, exponent = values
        if literal is None:
            return self._context.power(base, exponent)
        if literal.denominator > 1:
            base = self._root(base, str(literal.denominator))
        return base**literal.numerator

    def _root(self, value: Any, index: str) -> Any:
        """Return the real root of a negative number if it has one, else the principal root."""
        degree = int(index)
        if degree % 2 and not self._context.im(value) and value.real < 0:
            return -self._context.root(-value, degree)
        return self._context.root(value, degree)

    def _call(self, value: Any, name: str) -> Any:
        if name == "log":  # The base is not given: any base will do, except e and 10.
            return self._context.log(value) / self._context.log(7)
        return getattr(self._context, _NAMES.get(name, name))(value)

    def _coordinate(self, name: str, point: int) -> Any:
        """Choose the value of a variable at a point; it is not near 0 and not an integer."""
        context, chance = self._context, zlib.crc32(f"{point}:{name}".encode())
        sign = _SIGNS[point][zlib.crc32(name.encode()) % 2]
        return sign * (context.mpf(chance % 3_000_017) / 1_000_003 + context.mpf(1) / 7)


def _precision(tree: Tree) -> int:
    """Return how many decimal digits to compute with.

    Long numbers in the tree may hide a difference in late digits, so their length is added twice.
    """
    digits = sum(len(node[1]) for node in walk(tree) if node[0] == "num")
    return _DIGITS + 2 * digits
