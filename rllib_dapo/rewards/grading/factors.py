"""Take scalars apart into terms and factors, and describe them independently of their order.

Numbers are collected in one coefficient for each term, and a number before a sum is multiplied
into it: 2(x + 1) - x/3 has the terms 2·x, 2 and -1/3·x. Nothing else is worked out.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from rllib_dapo.rewards.grading.trees import Tree, children, number, walk

_ONE: Tree = ("num", "1")
TRIGONOMETRIC = frozenset({"sin", "cos", "tan", "cot", "sec", "csc"})
"""The names of the trigonometric functions."""


class Factor(NamedTuple):
    """A power of something that is no number.

    Attributes:
        base: what is raised to a power.
        exponent: the exponent; it is a literal 1 if there is none.
        under: whether the factor stands in a denominator.
    """

    base: Tree
    exponent: Tree
    under: bool

    @property
    def is_power(self) -> bool:
        """Whether an exponent is written."""
        return self.exponent is not _ONE

    @property
    def power(self) -> Fraction | None:
        """The exponent if it is a number, negative in a denominator; else None."""
        if not self.is_power:
            return Fraction(-1 if self.under else 1)
        value = number(self.exponent)
        return value if value is None or not self.under else -value


class Term(NamedTuple):
    """A product.

    Attributes:
        coefficient: the product of its numbers.
        factors: what else it is a product of.
        divisions: how many fractions it is a product of, literals not counted.
    """

    coefficient: Fraction
    factors: tuple[Factor, ...]
    divisions: int


def terms(tree: Tree, coefficient: Fraction | int = 1) -> Iterator[Term]:
    """Yield the terms of a sum, of which anything else is one."""
    head = tree[0]
    if head == "+":
        for part in tree[1:]:
            yield from terms(part, coefficient)
    elif head == "neg":
        yield from terms(tree[1], -coefficient)
    elif head == "num":
        yield Term(coefficient * Fraction(tree[1]), (), 0)
    elif head in ("*", "/"):
        term = _product(tree)
        factors = term.factors
        if len(factors) == 1 and factors[0].base[0] == "+" and factors[0].power == 1:
            yield from terms(factors[0].base, coefficient * term.coefficient)
        else:
            yield term._replace(coefficient=coefficient * term.coefficient)
    else:
        yield Term(Fraction(coefficient), (_factor(tree, under=False),), 0)


def _product(tree: Tree) -> Term:
    found: list[Factor] = []
    coefficient, divisions = Fraction(1), 0
    stack = [(tree, False)]
    while stack:
        part, under = stack.pop()
        head = part[0]
        if head == "num":
            value = Fraction(part[1])
            coefficient *= 1 / value if under and value else value
        elif head == "neg":
            coefficient = -coefficient
            stack.append((part[1], under))
        elif head == "*":
            stack.extend((factor, under) for factor in part[1:])
        elif head == "/":
            divisions += 1
            stack += [(part[1], under), (part[2], not under)]
        else:
            found.append(_factor(part, under=under))
    return Term(coefficient, tuple(found), divisions)


def _factor(tree: Tree, *, under: bool) -> Factor:
    if tree[0] == "^":
        return Factor(tree[1], tree[2], under)
    return Factor(tree, _ONE, under)


def canonical(tree: Tree) -> str:
    """Describe a tree so that the order of terms, factors and members makes no difference."""
    head = tree[0]
    if head in ("num", "var", "const"):
        return f"{head}:{tree[1]}"
    parts = [canonical(part) for part in children(tree)]
    if head in ("+", "*", "set"):
        parts.sort()
    names = [part for part in tree[1:] if isinstance(part, str)]
    return f"{head}({','.join(names + parts)})"


def monomial(term: Term) -> tuple[str, ...]:
    """Describe all of a term but its coefficient. Like terms have the same description."""
    return tuple(sorted(f"{canonical(f.base)}^{f.power or canonical(f.exponent)}" for f in term[1]))


def degree(tree: Tree) -> Fraction:
    """Return the degree in all variables together; trigonometric functions count as numbers."""
    head = tree[0]
    if head == "var":
        return Fraction(1)
    if head == "^":
        power = number(tree[2])
        return degree(tree[1]) * (Fraction(1) if power is None else abs(power))
    if head == "root":
        return degree(tree[2]) / int(tree[1])
    if head == "fn":
        return Fraction(0) if tree[1] in TRIGONOMETRIC else degree(tree[2])
    degrees = [degree(part) for part in children(tree)]
    if head == "*":
        return sum(degrees, Fraction(0))
    return max(degrees, default=Fraction(0))


def contains(tree: Tree, *heads: str) -> bool:
    """Return whether one of these operations stands anywhere in a tree."""
    return any(node[0] in heads for node in walk(tree))
