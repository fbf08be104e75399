"""Tell the value of a function, such as f(0), from a product, such as x(y + 1).

`I(0)e^{-t}` is not 0. A letter before a bracket is a function if the bracket holds a lone number
or a lone `t`, `x`, `n`, `s` or `z`, which nobody multiplies in this way. For f, g and h, any lone
letter will do, also with a sign, and for f whatever stands in the bracket.
"""

from __future__ import annotations

from collections.abc import Sequence

from rllib_dapo.rewards.grading.tokens import GREEK, Token

_FUNCTIONS = frozenset("fghFGH")
_ALWAYS = frozenset("fF")
_ARGUMENTS = frozenset("txnsz")


def argument_length(letter: str, tokens: Sequence[Token], at: int) -> int:
    """Return how many tokens, with its brackets, the argument of a function has; 0 if it is none.

    Args:
        letter: the letter before the bracket.
        tokens: the tokens of the whole text.
        at: the index of the token behind the letter and its subscript.
    """
    end = _closing(tokens, at, "(", ")")
    if end == 0:
        return 0
    content = tokens[at + 1 : end]
    lone = content[0] if len(content) == 1 else None
    if lone and (lone.type == "number" or lone.text in _ARGUMENTS):
        return end + 1 - at
    signed = content[1:] if content[0].text in "+-" else content
    plain = len(signed) == 1 and (signed[0].type in ("number", "name") or signed[0].text in GREEK)
    if letter in _ALWAYS or (letter in _FUNCTIONS and plain):
        return end + 1 - at
    return 0


def is_power_of_function(letter: str, tokens: Sequence[Token], at: int) -> bool:
    """Return whether f^{-1}(x) or f^2(x) stands here, which have several meanings."""
    if letter not in _FUNCTIONS or at + 1 >= len(tokens) or tokens[at].text != "^":
        return False
    end = _closing(tokens, at + 1, "{", "}") or at + 1
    return argument_length(letter, tokens, end + 1) > 0


def _closing(tokens: Sequence[Token], at: int, opening: str, closing: str) -> int:
    """Return the index of the bracket that closes the one at `at`; 0 if there is none."""
    if at >= len(tokens) or tokens[at].text != opening:
        return 0
    depth = 0
    for i in range(at, len(tokens)):
        depth += (tokens[i].text == opening) - (tokens[i].text == closing)
        if depth == 0:
            return i if i > at + 1 else 0
    return 0
