"""Put trees together, refusing arithmetic with what is no number."""

from __future__ import annotations

from fractions import Fraction

from rllib_dapo.rewards.grading.trees import Tree, kind


class UnreadableError(ValueError):
    """A text that is no mathematics, or is ambiguous, or says more than a value."""


def scalar(tree: Tree) -> Tree:
    """`tree` itself, if arithmetic can be done with it.

    Raises:
        UnreadableError: it is a tuple, a set, an equation or infinite.
    """
    if kind(tree) != "scalar" or "inf" in (tree[0], tree[-1][0]):
        raise UnreadableError("arithmetic with something that is no number")
    return tree


def negated(tree: Tree) -> Tree:
    """−tree; −∞ too."""
    if tree[0] == "num":
        return ("num", str(-Fraction(tree[1])))
    return ("neg", tree if tree == ("inf",) else scalar(tree))


def times(left: Tree, right: Tree) -> Tree:
    """The product, flat."""
    factors = [f for t in (left, right) for f in (t[1:] if t[0] == "*" else (scalar(t),))]
    return ("*", *factors)


def over(top: Tree, bottom: Tree) -> Tree:
    """The quotient; of two numbers that is a literal, unless there is a division to be done."""
    if bottom[0] == "num" and Fraction(bottom[1]) == 0:
        raise UnreadableError("a division by zero")
    if top[0] == bottom[0] == "num" and "/" not in top[1] + bottom[1]:
        value = Fraction(top[1]) / Fraction(bottom[1])
        if value.denominator > 1:
            return ("num", str(value))
    return ("/", scalar(top), scalar(bottom))
