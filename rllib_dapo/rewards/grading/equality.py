"""Decide whether two trees are the same value, given an arithmetic that compares scalars.

The workers load only this module and those that it imports. torch and Ray are not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Protocol

from rllib_dapo.rewards.grading.statements import solution_set
from rllib_dapo.rewards.grading.trees import Kind, Tree, kind, variables, walk

Real = Fraction | float
"""A point on the real line. A float stands for ±∞."""


class Arithmetic(Protocol):
    """Compares scalars."""

    def same(self, answer: Tree, gold: Tree) -> bool:
        """Return whether two scalars are equal for all values of their variables."""

    def proportional(self, answer: Tree, gold: Tree, *, positive: bool) -> bool:
        """Return whether one scalar is the other times a constant that is not 0.

        With `positive`, the constant has to be above 0.
        """

    def place(self, tree: Tree) -> Real:
        """Return the point on the real line at which a scalar without variables lies."""


def comparable(answer: Tree, gold: Tree) -> bool:
    """Return whether the kinds of the two are such that comparing them makes sense."""
    kinds = {kind(answer), kind(gold)}
    if len(kinds) == 1:
        return True
    if kinds == {"scalar", "set"}:
        return _only_item(gold) is not None
    if kinds == {"scalar", "rel"}:
        return kind(answer) == "scalar" and explicit(gold) is not None
    return "region" in kinds and kinds <= {"region", "tuple", "set"}


def on_the_line(tree: Tree, other: Tree) -> Tree:
    r"""Return a solved inequality as an interval if it is to be compared with one.

    Example: `x \le 3` beside `(-\infty, 3]`. Otherwise the tree itself is returned.
    """
    if kind(other) in ("tuple", "region") and kind(tree) in ("rel", "set"):
        return solution_set(tree) or tree
    return tree


def explicit(tree: Tree) -> Tree | None:
    """Return the right-hand side of an equation `y = …` that does not contain y; else None."""
    if tree[:2] == ("rel", "=") and tree[2][0] == "var" and tree[2][1] not in variables(tree[3]):
        return tree[3]  # type: ignore[no-any-return]
    return None


def equal(answer: Tree, gold: Tree, by: Arithmetic) -> bool:
    """Return whether an answer is the gold value; trees that are not `comparable` are not equal."""
    if answer == gold or not comparable(answer, gold):
        return answer == gold
    kinds = {kind(answer), kind(gold)}
    compare = _same_region if "region" in kinds else _COMPARE[kind(answer)]
    return compare(answer, gold, by)


def _only_item(tree: Tree) -> Tree | None:
    return tree[2][0] if tree[0] == "set" and len(tree[2]) == 1 else None


def _same_scalar(answer: Tree, gold: Tree, by: Arithmetic) -> bool:
    if kind(gold) != "scalar":
        gold = _only_item(gold) or explicit(gold) or gold
        return equal(answer, gold, by)
    infinite = [_infinity(tree) for tree in (answer, gold)]
    if any(infinite):
        return infinite[0] == infinite[1]
    return by.same(answer, gold)


def _same_tuple(answer: Tree, gold: Tree, by: Arithmetic) -> bool:
    return bool(answer[1:3] == gold[1:3]) and _same_row(answer[3], gold[3], by)


def _same_matrix(answer: Tree, gold: Tree, by: Arithmetic) -> bool:
    rows = answer[1], gold[1]
    return len(rows[0]) == len(rows[1]) and all(
        _same_row(a, g, by) for a, g in zip(*rows, strict=True)
    )


def _same_row(answer: tuple[Tree, ...], gold: tuple[Tree, ...], by: Arithmetic) -> bool:
    return len(answer) == len(gold) and all(
        equal(a, g, by) for a, g in zip(answer, gold, strict=True)
    )


def _same_set(answer: Tree, gold: Tree, by: Arithmetic) -> bool:
    if {answer[1], gold[1]} == {"or", "and"} or len(answer[2]) != len(gold[2]):
        return False
    left = list(gold[2])
    for item in answer[2]:
        found = next((i for i, other in enumerate(left) if equal(item, other, by)), None)
        if found is None:
            return False
        del left[found]
    return True


def _same_relation(answer: Tree, gold: Tree, by: Arithmetic) -> bool:
    if answer[1] != gold[1] or not variables(gold):
        return False
    sides = [("+", tree[2], ("neg", tree[3])) for tree in (answer, gold)]
    return by.proportional(sides[0], sides[1], positive=gold[1] in ("<", "<="))


_COMPARE: dict[Kind, Callable[[Tree, Tree, Arithmetic], bool]] = {
    "scalar": _same_scalar,
    "tuple": _same_tuple,
    "matrix": _same_matrix,
    "set": _same_set,
    "rel": _same_relation,
}


# -- sets on the real line


def _same_region(answer: Tree, gold: Tree, by: Arithmetic) -> bool:
    """Compare two sets at every end point, between each two neighbours, and beyond them all."""
    if any(variables(tree) or not _is_region(tree, by) for tree in (answer, gold)):
        return False
    ends = sorted({e for t in (answer, gold) for e in _ends(t, by) if isinstance(e, Fraction)})
    points = [*ends, *((a + b) / 2 for a, b in pairwise(ends))]
    points += [ends[0] - 1, ends[-1] + 1] if ends else [Fraction(0)]
    return all(_holds(answer, point, by) == _holds(gold, point, by) for point in points)


def _is_region(tree: Tree, by: Arithmetic) -> bool:
    """Return whether a tree is a set of real numbers; a pair is one if its ends increase."""
    if tree[0] == "tuple":
        if len(tree[3]) != 2 or any(kind(item) != "scalar" for item in tree[3]):
            return False
        low, high = (_place(item, by) for item in tree[3])
        return low < high or (low == high and tree[1:3] == ("[", "]"))
    if tree[0] == "set":
        return all(kind(item) == "scalar" and not _infinity(item) for item in tree[2])
    return kind(tree) == "region" and all(_is_region(part, by) for part in tree[1:])


def _ends(tree: Tree, by: Arithmetic) -> Iterator[Real]:
    for node in walk(tree):
        if node[0] in ("tuple", "set"):
            yield from (_place(item, by) for item in node[-1])


def _holds(tree: Tree, point: Fraction, by: Arithmetic) -> bool:
    head = tree[0]
    if head == "tuple":
        low, high = (_place(item, by) for item in tree[3])
        above = low < point or (low == point and tree[1] == "[")
        below = point < high or (point == high and tree[2] == "]")
        return above and below
    if head == "set":
        return any(_place(item, by) == point for item in tree[2])
    if head in ("reals", "empty"):
        return bool(head == "reals")
    parts = [_holds(part, point, by) for part in tree[1:]]
    if head == "union":
        return any(parts)
    return all(parts) if head == "cap" else parts[0] and not parts[1]


def _place(tree: Tree, by: Arithmetic) -> Real:
    infinity = _infinity(tree)
    return infinity if infinity else by.place(tree)


def _infinity(tree: Tree) -> float:
    """Return ±∞ if the tree is infinite, else 0."""
    if tree == ("inf",):
        return float("inf")
    return float("-inf") if tree == ("neg", ("inf",)) else 0.0
