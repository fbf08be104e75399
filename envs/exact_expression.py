"""Work out sums and products, as generators print them, in exact fractions.

This serves the questions of a task and is never applied to a completion. It reads integers and
decimals with `+ - * /`, parentheses and signs, by the usual precedence.
"""

from __future__ import annotations

import re
from fractions import Fraction

_TOKEN = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|[-+*/()])")


def exact_value(expression: str) -> Fraction | None:
    """Compute the value of `expression`; return None if it divides by zero.

    Raises:
        ValueError: the text is not such an expression.
    """
    tokens: list[str] = []
    position, end = 0, len(expression.rstrip())
    while position < end:
        match = _TOKEN.match(expression, position)
        if match is None:
            raise ValueError(
                f"{expression!r}: there is no number or sign at character {position + 1}"
            )
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
    """Reads tokens from left to right. The list is reversed, so the next one is the last."""

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
