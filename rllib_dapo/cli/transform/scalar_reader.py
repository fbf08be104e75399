r"""Reads scalars from LaTeX that is in simplest form.

The reader refuses `2\sqrt{8}`, `\frac{2}{4}`, `2+3` and `\frac{1}{\sqrt{2}}`, and simplifies
nothing: where an answer is not in simplest form, its printed form may be what the problem asks for.
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import gcd

from rllib_dapo.cli.transform.question import (
    IRRATIONAL_DENOMINATOR,
    NOT_EVALUATED,
    NOT_SIMPLIFIED,
    SEVERAL_READINGS,
    SYMBOLIC,
    TOO_LARGE,
    UNKNOWN_FORM,
    UNSUPPORTED_ROOT,
    RefusalError,
)
from rllib_dapo.cli.transform.scalar import (
    MAX_RADICAND,
    ONE,
    Basis,
    Scalar,
    Term,
    is_power_free,
    rational,
)

MAX_DIGITS = 30
"""The length of the longest integer that is read, in digits."""
MAX_DEPTH = 8
"""How deeply sums may be nested in braces or parentheses."""
_TOKEN = re.compile(r"\\[A-Za-z]+|[0-9]+|\S")
_TIMES = ("\\cdot", "\\times", "*")


def read_scalar(text: str) -> Scalar:
    """Read the whole of `text` as one scalar.

    Raises:
        RefusalError: the text is something else, or is not in simplest form.
    """
    reader = _Reader(_TOKEN.findall(text))
    terms = reader.sum()
    reader.expect_end()
    return terms


class _Factors:
    """The factors of one term that have been read so far; each kind occurs at most once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.fraction: Scalar | None = None
        self.mixed = False
        self.root: tuple[int, int] | None = None
        self.pi = 0
        self.imaginary = False

    @property
    def empty(self) -> bool:
        return self.number is None and self.fraction is None and self.bare

    @property
    def bare(self) -> bool:
        """Whether no root, pi or i has been read so far."""
        return self.root is None and not self.pi and not self.imaginary

    def terms(self) -> Scalar:
        """Multiply the factors into the terms of a scalar."""
        if self.mixed and not self.bare:
            raise RefusalError(SEVERAL_READINGS, "a mixed number or a product of three factors")
        if self.fraction is not None and len(self.fraction) > 1:
            if not self.bare or self.number is not None:
                raise RefusalError(NOT_EVALUATED, "a sum that is still to be multiplied")
            return self.fraction
        basis, factor = self.fraction[0] if self.fraction else (ONE, Fraction(1))
        if self.number is not None:
            factor *= self.number
        root, pi, imaginary = (basis.radicand, basis.index), basis.pi, basis.imaginary
        doubled = (
            (self.root is not None and root[0] > 1)
            or (self.pi and pi)
            or (self.imaginary and imaginary)
        )
        if doubled:
            raise RefusalError(NOT_EVALUATED, "a product that is not worked out")
        radicand, index = self.root or root
        return ((Basis(radicand, index, self.pi or pi, self.imaginary or imaginary), factor),)


class _Reader:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.position = 0
        self.depth = 0

    @property
    def head(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self) -> str:
        piece = self.head
        self.position += 1
        return piece

    def expect(self, wanted: str) -> None:
        if self.take() != wanted:
            raise RefusalError(UNKNOWN_FORM, f"no {wanted!r} where one was expected")

    def expect_end(self) -> None:
        if self.head:
            raise _unexpected(self.head)

    def sum(self) -> Scalar:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise RefusalError(TOO_LARGE, f"braces nested more than {MAX_DEPTH} deep")
        sign = self.sign(first=True)
        terms: list[Term] = []
        while True:
            terms += [(basis, sign * factor) for basis, factor in self.term()]
            if self.head not in ("+", "-"):
                break
            sign = self.sign(first=False)
        bases = [basis for basis, _ in terms]
        if len(set(bases)) < len(bases):
            raise RefusalError(NOT_EVALUATED, "like terms that are not added")
        if len(terms) > 1 and any(factor == 0 for _, factor in terms):
            raise RefusalError(NOT_SIMPLIFIED, "a term that is 0")
        self.depth -= 1
        return tuple(terms)

    def sign(self, *, first: bool) -> int:
        if self.head in ("+", "-"):
            return -1 if self.take() == "-" else 1
        if not first:
            raise RefusalError(UNKNOWN_FORM, "no sign between two terms")
        return 1

    def term(self) -> Scalar:
        found = _Factors()
        multiplied = False
        while self.factor(found, multiplied=multiplied):
            multiplied = self.head in _TIMES
            if multiplied:
                self.take()
        if found.empty or multiplied:
            raise _unexpected(self.head)
        terms = found.terms()
        return self.divided(terms) if self.head == "/" else terms

    def factor(self, found: _Factors, *, multiplied: bool) -> bool:
        """Read one factor into `found`; return False if the next token begins none."""
        if self.head.isascii() and self.head.isdigit():
            if not found.empty:
                raise RefusalError(NOT_EVALUATED, f"a product with {self.head}")
            found.number = self.integer()
        elif self.head in ("\\frac", "("):
            self.fraction(found, multiplied=multiplied)
        elif self.head == "\\sqrt":
            if found.root is not None:
                raise RefusalError(NOT_EVALUATED, "a product of roots")
            found.root = self.root()
        elif self.head == "\\pi":
            if found.pi:
                raise RefusalError(NOT_EVALUATED, "a product of pi with itself")
            found.pi = self.pi()
        elif self.head == "i":
            self.take()
            if found.imaginary:
                raise RefusalError(NOT_EVALUATED, "a product of i with itself")
            found.imaginary = True
        else:
            return False
        return True

    def divided(self, terms: Scalar) -> Scalar:
        self.take()
        denominator = self.integer()
        if self.head in ("\\sqrt", "\\pi", "i", "(", "/", "\\frac", *_TIMES):
            raise RefusalError(SEVERAL_READINGS, f"the denominator may go on after /{denominator}")
        return _quotient(terms, denominator)

    def integer(self) -> int:
        piece = self.take()
        if not (piece.isascii() and piece.isdigit()):
            raise _unexpected(piece)
        if len(piece) > MAX_DIGITS:
            raise RefusalError(TOO_LARGE, f"a number of {len(piece)} digits")
        if len(piece) > 1 and piece[0] == "0":
            raise RefusalError(NOT_SIMPLIFIED, f"the leading 0 of {piece[:20]}")
        return int(piece)

    def fraction(self, found: _Factors, *, multiplied: bool) -> None:
        if found.fraction is not None or not found.bare:
            raise RefusalError(NOT_EVALUATED, "a product with a fraction")
        if self.take() == "(":
            found.fraction = self.parenthesised()
            if found.number is not None:
                raise RefusalError(NOT_EVALUATED, "a sum that is still to be multiplied")
            return
        numerator = self.argument()
        value = _quotient(numerator, self.denominator())
        if found.number is not None:
            part = rational(value)
            if part is None or multiplied or found.number == 0:
                raise RefusalError(SEVERAL_READINGS, "a number beside a fraction")
            if not 0 < part < 1:
                raise RefusalError(NOT_SIMPLIFIED, "a mixed number whose fraction is not below 1")
            value = ((ONE, found.number + part),)
            found.number, found.mixed = None, True
        found.fraction = value

    def parenthesised(self) -> Scalar:
        terms = self.sum()
        self.expect(")")
        if self.head != "/":
            raise RefusalError(NOT_EVALUATED, "parentheses that are not worked out")
        self.take()
        return _quotient(terms, self.integer())

    def argument(self) -> Scalar:
        self.expect("{")
        terms = self.sum()
        self.expect("}")
        return terms

    def denominator(self) -> int:
        terms = self.argument()
        value = rational(terms)
        if value is None:
            raise RefusalError(IRRATIONAL_DENOMINATOR, "a denominator must be an integer")
        if value.denominator != 1 or value < 1:
            raise RefusalError(NOT_SIMPLIFIED, f"the denominator {value}")
        return int(value)

    def root(self) -> tuple[int, int]:
        self.take()
        index = 2
        if self.head == "[":
            self.take()
            index = self.integer()
            self.expect("]")
        value = rational(self.argument())
        if index not in (2, 3) or value is None or value.denominator != 1 or value < 0:
            raise RefusalError(UNSUPPORTED_ROOT, "only roots of positive integers are read")
        radicand = int(value)
        if radicand > MAX_RADICAND:
            raise RefusalError(TOO_LARGE, f"a root of {radicand}")
        if radicand < 2 or not is_power_free(radicand, index):
            raise RefusalError(NOT_SIMPLIFIED, f"the root of {radicand}")
        return radicand, index

    def pi(self) -> int:
        self.take()
        if self.head != "^":
            return 1
        self.take()
        power = self.integer()
        if not 2 <= power <= 3:
            raise RefusalError(UNKNOWN_FORM, f"pi to the power {power}")
        return power


def _quotient(terms: Scalar, denominator: int) -> Scalar:
    """Divide terms with integer factors by a denominator; refuse what is not in lowest terms."""
    factors = [factor for _, factor in terms]
    if any(factor.denominator != 1 for factor in factors):
        raise RefusalError(NOT_SIMPLIFIED, "a fraction within a fraction")
    if denominator < 2 or gcd(denominator, *(int(factor) for factor in factors)) != 1:
        raise RefusalError(NOT_SIMPLIFIED, f"a fraction over {denominator} not in lowest terms")
    return tuple((basis, factor / denominator) for basis, factor in terms)


def _unexpected(piece: str) -> RefusalError:
    if len(piece) == 1 and piece.isalpha():
        return RefusalError(SYMBOLIC, f"the letter {piece}")
    if piece == "^":
        return RefusalError(NOT_EVALUATED, "a power")
    return RefusalError(UNKNOWN_FORM, f"found {piece or 'the end'!r}")
