r"""Read a mathematical text as a tree (see `trees`). Nothing is evaluated.

The grammar covers final answers: closed forms, polynomials, tuples, sets, intervals, equations,
inequalities and matrices. Integrals, sums, limits and derivatives are not part of it.
"""

from __future__ import annotations

from typing import NamedTuple

from rllib_dapo.rewards.grading.literals import TooLargeError
from rllib_dapo.rewards.grading.scalar_parser import MAX_DEPTH, ScalarParser
from rllib_dapo.rewards.grading.tokens import cut_unit, prepare, tokenize
from rllib_dapo.rewards.grading.trees import Tree, UnreadableError, children, kind, scalar

_RELATIONS = {"=": "=", "!=": "!=", "<": "<", "<=": "<=", ">": "<", ">=": "<="}
_REGIONS = {"cup": "union", "cap": "cap", "setminus": "minus", "backslash": "minus"}
_CLOSERS = {"(": ")]", "[": ")]", "\\{": "\\}"}
_MATRICES = ("pmatrix", "bmatrix", "Bmatrix", "matrix")
_ROW = "\x02"  # `tokens.prepare` puts this in place of two backslashes.


class Parsed(NamedTuple):
    """A tree, and the unit behind the text ("" if there is none)."""

    tree: Tree
    unit: str


def parse_math(text: str) -> Parsed:
    """Read the whole of `text`.

    Args:
        text: a text without math delimiters or emphasis; see `extract.clean`.

    Raises:
        UnreadableError: the text does not follow the grammar.
        TooLargeError: the text is too long, or nested too deeply.
    """
    body, unit = cut_unit(prepare(text))
    tree = _Parser(tokenize(body)).whole()
    if unit and kind(tree) not in ("scalar", "tuple", "set"):
        raise UnreadableError("a unit follows a value that cannot have one")
    return Parsed(tree, unit)


class _Parser(ScalarParser):
    """Reads statements: lists of relations between values."""

    def whole(self) -> Tree:
        """Read all tokens as one tree."""
        items, join = self._items(double=True)
        if self.at < len(self.tokens):
            raise UnreadableError(f"{self.tokens[self.at].text!r} is out of place")
        tree = items[0] if len(items) == 1 else ("set", join or ",", tuple(items))
        # Chains such as a/b/c make a deep tree without deep recursion in the parser.
        if _height(tree) > 3 * MAX_DEPTH:
            raise TooLargeError("the text is nested too deeply")
        return tree

    def _items(self, *, double: bool) -> tuple[list[Tree], str]:
        """Read items between separators; return them and the separator, "" for a single item."""
        items, join = self._item(double=double), ""
        while separator := self.accept(",") or self.accept(of="join"):
            word = self.accept(of="join") if separator == "," else separator  # a, b, or c
            if word or not join:
                join = word or ","
            items += self._item(double=double)
        return items, join

    def _item(self, *, double: bool) -> list[Tree]:
        """Read one item. With `double`, an item that contains ± gives two, first +, then −."""
        if not double:
            return [self._relation()]
        start, outer = self.at, (self._saw_sign, self._upper)
        self._saw_sign, self._upper = False, True
        found = [self._relation()]
        if self._saw_sign:
            self.at, self._upper = start, False
            found.append(self._relation())
        self._saw_sign, self._upper = outer
        return found

    def _relation(self) -> Tree:
        sides, signs = [self._region()], []
        while sign := self.accept(*_RELATIONS):
            signs.append(sign)
            sides.append(self._region())
        if not signs:
            return sides[0]
        if len(signs) > 1 and ("=" in signs or "!=" in signs):
            raise UnreadableError("a chain of equations is not a value")
        links: list[Tree] = []
        for i, sign in enumerate(signs):
            left, right = scalar(sides[i]), scalar(sides[i + 1])
            pair = (right, left) if sign.startswith(">") else (left, right)
            links.append(("rel", _RELATIONS[sign], *pair))
        return links[0] if len(links) == 1 else ("set", "and", tuple(links))

    def _region(self) -> Tree:
        tree = self.sum()
        while name := self.accept(*_REGIONS, of="command"):
            right = self.sum()
            if {kind(tree), kind(right)} - {"tuple", "set", "region"}:
                raise UnreadableError(f"{_REGIONS[name]} joins something that is not a set")
            tree = (_REGIONS[name], tree, right)
        return tree

    def bracket(self) -> Tree:
        """Read a group in parentheses, a tuple, an interval or a set."""
        opening = self.tokens[self.at].text
        if opening not in _CLOSERS:
            raise UnreadableError(f"{opening!r} is out of place")
        self.at += 1
        if opening == "\\{" and self.accept("\\}"):
            return ("empty",)
        bars, self._bars = self._bars, 0
        items, join = self._items(double=opening == "\\{" and self._depth == 1)
        self._bars = bars
        closing = next((c for c in ("\\}", ")", "]") if self.accept(c)), "")
        if not closing or closing not in _CLOSERS[opening]:
            raise UnreadableError(f"{opening!r} is not closed")
        if opening == "\\{":
            return ("set", ",", tuple(items))
        if len(items) > 1 and join != ",":
            raise UnreadableError("a tuple contains words")
        if len(items) > 1:
            return ("tuple", opening, closing, tuple(items))
        if opening + closing not in ("()", "[]"):
            raise UnreadableError("two different brackets enclose one value")
        return items[0]

    def special(self, command: str) -> Tree:
        r"""Read `\mathbb{R}` or a matrix."""
        if command == "mathbb":
            braced = self.accept("{")
            self.expect("R", of="name")
            if braced:
                self.expect("}")
            return ("reals",)
        if command.startswith("begin") and command[5:] in _MATRICES:
            return self._matrix("end" + command[5:])
        raise UnreadableError(f"\\{command} is not part of a value")

    def _matrix(self, end: str) -> Tree:
        rows: list[tuple[Tree, ...]] = []
        while not self.accept(end, of="command"):
            row = [scalar(self.sum())]
            while self.accept("&"):
                row.append(scalar(self.sum()))
            rows.append(tuple(row))
            if not self.accept(_ROW) and not self.peek(end, of="command"):
                raise UnreadableError("a matrix breaks off")
        if not rows:
            raise UnreadableError("a matrix is empty")
        return ("matrix", tuple(rows))


def _height(tree: Tree) -> int:
    height, level = 0, [tree]
    while level:
        height += 1
        level = [child for node in level for child in children(node)]
    return height
