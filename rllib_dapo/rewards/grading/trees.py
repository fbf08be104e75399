r"""Represent a mathematical answer as a tree, and find which operations it leaves undone.

A tree is a nested tuple of texts and trees, which goes to the workers as JSON:

    scalars   ("num", "3/4")  ("var", "x_1")  ("const", "pi" | "e" | "i")  ("inf",)
              ("+", a, b, …)  ("*", a, b, …)  ("/", a, b)  ("^", a, b)  ("neg", a)
              ("root", "3", a)  ("fn", "sin", a)  ("binom", n, k)
    others    ("tuple", "[", ")", (a, b))     a point, a vector, an interval
              ("set", "," | "or" | "and", (a, b))     a set or a bare list, in any order
              ("rel", "=" | "!=" | "<" | "<=", a, b)
              ("matrix", ((a, b), (c, d)))
              ("union", a, b, …)  ("minus", a, b)  ("cap", a, b, …)  ("reals",)  ("empty",)
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Literal

Tree = tuple[Any, ...]
Kind = Literal["scalar", "tuple", "set", "rel", "matrix", "region"]

_CONTAINERS: dict[str, Kind] = {
    "tuple": "tuple",
    "set": "set",
    "rel": "rel",
    "matrix": "matrix",
    **dict.fromkeys(("union", "minus", "cap", "reals", "empty"), "region"),
}
# Beside one of these a root is allowed, too: ln √3 is another form of (1/2) ln 3.
_IRRATIONAL = frozenset(
    {"log", "trigonometry", "inverse trigonometry", "hyperbolic", "exponential"}
)
_CLASS = (
    dict.fromkeys(("sin", "cos", "tan", "cot", "sec", "csc"), "trigonometry")
    | dict.fromkeys(("arcsin", "arccos", "arctan"), "inverse trigonometry")
    | dict.fromkeys(("sinh", "cosh", "tanh"), "hyperbolic")
    | dict.fromkeys(("ln", "log", "log2", "lg"), "log")
    | {"abs": "absolute value", "floor": "rounding", "ceil": "rounding", "!": "factorial"}
)


class UnreadableError(ValueError):
    """The text is not mathematics, is ambiguous, or is more than a value."""


def kind(tree: Tree) -> Kind:
    """Return what sort of value a tree is. Mostly, only two of one kind are compared."""
    return _CONTAINERS.get(tree[0], "scalar")


def scalar(tree: Tree) -> Tree:
    """Return `tree` itself if arithmetic can be done with it.

    Raises:
        UnreadableError: it is a tuple, a set, an equation or the like, or it is infinite.
    """
    if kind(tree) != "scalar" or "inf" in (tree[0], tree[-1][0]):
        raise UnreadableError("arithmetic needs numbers")
    return tree


def negated(tree: Tree) -> Tree:
    """Return −tree; the tree may also be ∞."""
    if tree[0] == "num":
        return ("num", str(-Fraction(tree[1])))
    return ("neg", tree if tree == ("inf",) else scalar(tree))


def times(left: Tree, right: Tree) -> Tree:
    """Return the product, in which products are not nested."""
    factors = [f for t in (left, right) for f in (t[1:] if t[0] == "*" else (scalar(t),))]
    return ("*", *factors)


def over(top: Tree, bottom: Tree) -> Tree:
    """Return the quotient.

    Two numbers give a literal (3/4), unless the quotient is an integer or one of the two is a
    fraction itself; then a division is left to be done.

    Raises:
        UnreadableError: the bottom is 0.
    """
    if bottom[0] == "num" and Fraction(bottom[1]) == 0:
        raise UnreadableError("the text divides by zero")
    if top[0] == bottom[0] == "num" and "/" not in top[1] + bottom[1]:
        value = Fraction(top[1]) / Fraction(bottom[1])
        if value.denominator > 1:
            return ("num", str(value))
    return ("/", scalar(top), scalar(bottom))


def children(tree: Tree) -> Iterator[Tree]:
    """Yield the trees directly below this one."""
    for part in tree[1:]:
        if isinstance(part, tuple):
            if part and isinstance(part[0], str):
                yield part
            else:  # These are items, or rows of items.
                for item in part:
                    yield from (item,) if isinstance(item[0], str) else item


def walk(tree: Tree) -> Iterator[Tree]:
    """Yield the tree itself and then all trees below it."""
    stack = [tree]
    while stack:
        tree = stack.pop()
        yield tree
        stack.extend(children(tree))


def number(tree: Tree) -> Fraction | None:
    """Return the value of a literal with its sign, or None for any other tree."""
    if tree[0] == "num":
        return Fraction(tree[1])
    if tree[0] == "neg" and tree[1][0] == "num":
        return -Fraction(tree[1][1])
    return None


def variables(tree: Tree) -> frozenset[str]:
    """Return the names of the variables in a tree."""
    return frozenset(node[1] for node in walk(tree) if node[0] == "var")


def operations(tree: Tree) -> frozenset[str]:
    """Return the classes of operation in a tree that are not free.

    An answer may contain such a class only if the ground truth contains it, too. + − × ÷ and whole
    powers are free (in no class), unless they work on numbers alone. Then something is left to be
    worked out, such as a "sum of numbers".
    """
    return frozenset(found for node in walk(tree) for found in _of_node(node))


def allowed(answer: Tree, gold: Tree) -> bool:
    """Return whether the answer leaves only operations undone that the ground truth leaves, too."""
    permitted = operations(gold)
    if permitted & _IRRATIONAL:
        permitted |= {"root"}
    return operations(answer) <= permitted and variables(answer) <= variables(gold)


def _of_node(tree: Tree) -> Iterator[str]:
    head = tree[0]
    if head == "const":
        yield tree[1]
    elif head == "+":
        if sum(number(term) is not None for term in tree[1:]) > 1:
            yield "sum of numbers"
    elif head in ("*", "/"):
        yield from _of_product(tree)
    elif head == "^":
        yield from _of_power(tree[1], tree[2])
    elif head == "root":
        yield _of_root(number(tree[2]), int(tree[1]))
    elif head == "fn":
        yield _CLASS[tree[1]]
    elif head == "binom":
        yield "factorial"


def _of_product(tree: Tree) -> Iterator[str]:
    over: list[Fraction] = []
    under: list[Fraction] = []
    _numeric_factors(tree, over, under)
    if len(over) > 1 or len(under) > 1:
        yield "product of numbers"
    elif over and under and (over[0] / under[0]).denominator == 1:
        yield "quotient of numbers"


def _numeric_factors(tree: Tree, over: list[Fraction], under: list[Fraction]) -> None:
    value = number(tree)
    if value is not None:
        over.append(value)
    elif tree[0] == "*":
        for factor in tree[1:]:
            _numeric_factors(factor, over, under)
    elif tree[0] == "/":
        _numeric_factors(tree[1], over, under)
        _numeric_factors(tree[2], under, over)
    elif tree[0] == "neg":
        _numeric_factors(tree[1], over, under)


def _of_power(base: Tree, exponent: Tree) -> Iterator[str]:
    power, value = number(exponent), number(base)
    if power is None:
        yield "exponential"
    elif power.denominator > 1:
        yield _of_root(value, power.denominator)
    elif value is not None or base == ("const", "i"):
        yield "power of numbers"


def _of_root(value: Fraction | None, index: int) -> str:
    if value is not None and value >= 0 and _is_power(value, index):
        return "exact root"
    return "root"


def _is_power(value: Fraction, index: int) -> bool:
    return all(_has_root(part, index) for part in (value.numerator, value.denominator))


def _has_root(value: int, index: int) -> bool:
    if index >= value.bit_length():
        return value < 2
    low, high = 0, 1 << (value.bit_length() // index + 1)
    while low < high:
        middle = (low + high) // 2
        if middle**index < value:
            low = middle + 1
        else:
            high = middle
    return bool(low**index == value)
