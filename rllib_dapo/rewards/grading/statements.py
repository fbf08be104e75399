r"""Find what is left to be done in sets, equations and inequalities.

Sets are to be joined and intersected, equations and inequalities to be solved.
"""

from __future__ import annotations

from rllib_dapo.rewards.grading.factors import contains, degree
from rllib_dapo.rewards.grading.trees import Tree, kind, variables, walk

_INEQUALITIES = (("rel", "<"), ("rel", "<="))


def open_statements(tree: Tree, kinds: set[str]) -> int:
    """Add the kinds of work that a tree leaves to `kinds`, and count the sets that it joins."""
    pieces = 0
    if kind(tree) == "scalar":
        return pieces
    for node in walk(tree):
        head = node[0]
        if head == "cap":
            kinds.add("intersection")
        elif head in ("union", "minus"):
            pieces += _pieces(node)
            if head == "union" and all(part[0] == "set" for part in node[1:]):
                kinds.add("union of finite sets")
            if head == "minus" and node[1][0] in ("set", "tuple"):
                kinds.add("difference")
        elif head == "rel":
            pieces += node[1] == "!="
            if not is_solved(node):
                kinds.add("equation to solve" if node[1] == "=" else "inequality to solve")
        elif head == "set" and node[1] == "or" and node[2][0][:2] in _INEQUALITIES:
            pieces += len(node[2]) - 1
    return pieces


def _pieces(tree: Tree) -> int:
    if tree[0] == "minus" and tree[2][0] == "set":
        return len(tree[2][2])
    return 1


def is_solved(tree: Tree) -> bool:
    """Return whether a relation is solved for a variable.

    -x < -3 is solved, because changing both signs is no work, and so is a line in its general
    form, 2x - y + 1 = 0.
    """
    left, right = tree[2], tree[3]
    if _isolates(left, right) or _isolates(right, left):
        return True
    if tree[1] != "=" or ("num", "0") not in (left, right):
        return False
    line = left if right == ("num", "0") else right
    plain = not contains(line, "/", "fn", "root") and degree(line) == 1
    return plain and len(variables(line)) > 1 and line[0] == "+"


def _isolates(side: Tree, other: Tree) -> bool:
    if side[0] == "neg":
        side = side[1]
    return side[0] == "var" and side[1] not in variables(other)


def solution_set(tree: Tree) -> Tree | None:
    r"""Return the numbers for which solved inequalities in one variable hold, as a region.

    Example: `x \le 3` gives the tree of `(-\infty, 3]`. Any other tree gives None.
    """
    if tree[0] == "set" and tree[1] in ("or", "and") and len(variables(tree)) == 1:
        parts = [solution_set(part) for part in tree[2]]
        region = ("union" if tree[1] == "or" else "cap", *parts)
        return None if None in parts else region
    if tree[0] != "rel" or tree[1] == "=":
        return None
    left, right = tree[2], tree[3]
    letter = left if left[0] == "var" else right
    bound = right if letter is left else left
    if letter[0] != "var" or variables(bound) or kind(bound) != "scalar":
        return None
    if tree[1] == "!=":
        return ("minus", ("reals",), ("set", ",", (bound,)))
    closed = tree[1] == "<="
    if letter is left:
        return ("tuple", "(", "]" if closed else ")", (("neg", ("inf",)), bound))
    return ("tuple", "[" if closed else "(", ")", (bound, ("inf",)))
