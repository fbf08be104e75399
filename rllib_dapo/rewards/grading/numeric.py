"""Compare expressions with roots, powers and functions by their values at many digits.

Two expressions are taken for equal if they agree at several points, positive and negative,
to at least 40 digits more than stand in them. That decides what simplifying by rules leaves
open, and has no rules that could be wrong; but values can be astronomical (9^(9^(9^9))),
so it is done in a worker that may be killed (see `pool`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from mpmath import MPContext  # type: ignore[import-untyped]

from rllib_dapo.rewards.grading.algebra import Real
from rllib_dapo.rewards.grading.rational import NotRationalError, RationalArithmetic
from rllib_dapo.rewards.grading.trees import Tree, number, walk

_DIGITS = 60
_SPARE = 20  # digits that rounding may cost
_SIGNS = ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 1))  # of every other variable, by point
_PLACE_DIGITS = 40
_NAMES = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "ln": "log", "lg": "log10"}
_NAMES |= {"abs": "fabs", "!": "factorial"}


class NumericArithmetic:
    """Compares any scalars; rational ones exactly."""

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
        """Whether they agree at all points where either has a value, one at least."""
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
        """Whether their ratio is the same real number at all points."""
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
        """The value, to 40 decimal places.

        Raises:
            ValueError: it is not real.
        """
        self._context.dps = _precision(tree)
        value = self._evaluate(tree, 0)
        if self._context.im(value) or not self._context.isfinite(value):
            raise ValueError("a place that is not real")
        return Fraction(int(self._context.nint(value * 10**_PLACE_DIGITS)), 10**_PLACE_DIGITS)

    def _values(self, answer: Tree, gold: Tree) -> list[tuple[Any, Any]]:
        self._context.dps = max(_precision(answer), _precision(gold))
        points = range(len(_SIGNS))
        return [(self._value(answer, k), self._value(gold, k)) for k in points]

    def _value(self, tree: Tree, point: int) -> Any:
        """The value, or None where there is none."""
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
        """The principal root, but the real one of a negative number where there is one."""
        degree = int(index)
        if degree % 2 and not self._context.im(value) and value.real < 0:
            return -self._context.root(-value, degree)
        return self._context.root(value, degree)

    def _call(self, value: Any, name: str) -> Any:
        if name == "log":  # of a base that is not said: any, but not e and not 10
            return self._context.log(value) / self._context.log(7)
        return getattr(self._context, _NAMES.get(name, name))(value)

    def _coordinate(self, name: str, point: int) -> Any:
        """The value of a variable: away from 0, and not whole."""
        context, chance = self._context, zlib.crc32(f"{point}:{name}".encode())
        sign = _SIGNS[point][zlib.crc32(name.encode()) % 2]
        return sign * (context.mpf(chance % 3_000_017) / 1_000_003 + context.mpf(1) / 7)


def _precision(tree: Tree) -> int:
    """Decimal digits to compute with: no fewer than a difference could be hidden in."""
    digits = sum(len(node[1]) for node in walk(tree) if node[0] == "num")
    return _DIGITS + 2 * digits
