"""Sums and products as generators print them, worked out in exact fractions.

For the questions of a task, never for answers: integers and decimals with `+ - * /`,
parentheses and signs, by the usual precedence.
"""

from __future__ import annotations

import re
from fractions import Fraction

_TOKEN = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|[-+*/()])")


def exact_value(expression: str) -> Fraction | None:
    """The value of `expression`; None if it divides by zero.

    Raises:
        ValueError: it is no such expression.
    """
    tokens: list[str] = []
    position, end = 0, len(expression.rstrip())
    while position < end:
        match = _TOKEN.match(expression, position)
        if match is None:
            raise ValueError(f"{expression!r}: no number or sign at character {position + 1}")
        tokens.append(match[1])
        position = match.end()
    reader = _Reader(tokens)
    try:
        value = reader.sum()
    except ZeroDivisionError:
        return None
    if reader.tokens:
        raise ValueError(f"{expression!r}: {reader.tokens[-1]!r} is left over")
    return value


class _Reader:
    """Takes tokens from the left, which is the end of the reversed list."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens[::-1]

    def take(self, *wanted: str) -> str | None:
        return self.tokens.pop() if self.tokens and self.tokens[-1] in wanted else None

    def sum(self) -> Fraction:
        value = self.product()
        while sign := self.take("+", "-"):
            value = value + self.product() if sign == "+" else value - self.product()
        return value

    def product(self) -> Fraction:
        value = self.factor()
        while sign := self.take("*", "/"):
            value = value * self.factor() if sign == "*" else value / self.factor()
        return value

    def factor(self) -> Fraction:
        if sign := self.take("+", "-"):
            return -self.factor() if sign == "-" else self.factor()
        if self.take("("):
            value = self.sum()
            if not self.take(")"):
                raise ValueError("a parenthesis is not closed")
            return value
        if not self.tokens or not self.tokens[-1][0].isdigit():
            raise ValueError("a number is missing")
        return Fraction(self.tokens.pop())
