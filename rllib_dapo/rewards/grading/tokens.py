r"""Cut a mathematical text, LaTeX or plain, into the tokens that `parser` reads.

`\sqrt2 \cdot x`, `√2·x` and `sqrt(2)*x` give the same tokens except for the parentheses.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from rllib_dapo.rewards.grading.literals import MAX_DIGITS, TooLargeError, thousands
from rllib_dapo.rewards.grading.normalize import fraction_signs, without_layout
from rllib_dapo.rewards.grading.trees import UnreadableError
from rllib_dapo.rewards.grading.units import canonical_unit

MAX_TOKENS: Final = 600
"""The longest text that is read, in tokens."""


class Token(NamedTuple):
    r"""A piece of text.

    Attributes:
        type: `number`, `name` (a variable), `command` (without its backslash), `join`
            (`or`, `and`) or `sign`.
        text: the name, number, command, word or sign itself.
    """

    type: str
    text: str


_TEXT = r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mbox|operatorname|rm)\s?\{[^{}]*\}"
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
    rf"|(?P<text>{_TEXT}|[A-Za-z]+)"
    r"|(?P<command>\\(?:[A-Za-z]+|[{}|]))"
    r"|(?P<sign>\*\*|<=|>=|!=|\x02|[-+*/^_!|,;()\[\]{}=<>&]))"
)
_ENVIRONMENT = re.compile(r"\\(begin|end)\s?\{([a-z]*)\}")
_UNIT = re.compile(
    rf"(?:{_TEXT}(?:\s?\^\s?\{{?[23]\}}?)?|\^\s?\{{?\\circ\s?\}}?"
    r"|\s(?:(?:square|cubic|sq|cu)\.? )?[A-Za-z]{2,}(?:\s?\^\s?\{?[23]\}?)?)\Z"
)
_COMMA_GROUPS = re.compile(r"(?<![0-9,.])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,.]|\s?,)")
_DEFINITION = re.compile(r"[A-Za-z]\s?\(\s?[a-z](?:\s?,\s?[a-z])*\s?\)\s?=(?=[^=]*\Z)")
_MEMBER = re.compile(r"[a-z]\s?(?:\\in(?![A-Za-z])|∈)")

_SIGN_OF = {
    **{"**": "^", "*": "*", "cdot": "*", "times": "*", "ast": "*", "div": "/", ";": ","},
    **{"lbrace": "\\{", "rbrace": "\\}", "{": "\\{", "}": "\\}", "le": "<=", "ge": ">="},
    **{"leq": "<=", "geq": ">=", "leqslant": "<=", "geqslant": ">=", "ne": "!=", "neq": "!="},
    **{"lt": "<", "gt": ">", "lvert": "|", "rvert": "|", "vert": "|", "langle": "(", "rangle": ")"},
    **{"lbrack": "[", "rbrack": "]"},
}
_COMMAND_OF = {"inf": "infty", "infinity": "infty", "oo": "infty", "asin": "arcsin"}
_COMMAND_OF |= {
    "acos": "arccos",
    "atan": "arctan",
    "dfrac": "frac",
    "tfrac": "frac",
    "cfrac": "frac",
}
_COMMAND_OF |= {"dbinom": "binom", "tbinom": "binom", "varnothing": "emptyset", "lor": "or"}
_COMMAND_OF |= {"land": "and", "wedge": "and", "vee": "or"}
FUNCTIONS: Final = frozenset(
    {"sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh"}
    | {"tanh", "ln", "log", "lg", "exp"}
)
"""The functions whose argument may stand without parentheses."""
GREEK: Final = frozenset(
    {"alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "kappa"}
    | {"vartheta", "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "phi", "varphi", "chi"}
    | {"psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Sigma", "Phi", "Psi", "Omega", "ell"}
)
"""The commands that are names of variables."""
_WORDS = FUNCTIONS | {"sqrt", "pi", "infty", "abs", "or", "and", "floor", "ceil"}
_LONGEST_NAMES = 3  # xyz is a product of three variables, but longer words are just words.


def cut_unit(text: str) -> tuple[str, str]:
    """Return a text without the unit at its end, and the unit's canonical name (or "")."""
    if match := _UNIT.search(text):
        unit = canonical_unit(match.group().strip())
        if unit is not None and match.start():
            return text[: match.start()], unit
    return text, ""


def prepare(text: str) -> str:
    r"""Unify the spelling of signs and spaces in `text`, and remove `f(x) =` and `x \in`."""
    text = fraction_signs(text).replace("\\\\", "\x02")
    text = without_layout(thousands(text, "")).strip()
    if not re.search(r"[(\[]|\\\{", text):
        text = _COMMA_GROUPS.sub(lambda m: m.group().replace(",", ""), text)
    for prefix in (_DEFINITION, _MEMBER):
        if match := prefix.match(text):
            text = text[match.end() :].strip()
    return text


def tokenize(text: str) -> list[Token]:
    """Cut a prepared text into tokens.

    Raises:
        UnreadableError: a character or a word is not mathematics.
        TooLargeError: the text has too many tokens, or a number in it is too long.
    """
    text = _ENVIRONMENT.sub(lambda m: rf"\{m[1]}{m[2]} ", text)
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            if text[position:].strip():
                raise UnreadableError(f"{text[position : position + 20]!r} is not mathematics")
            break
        tokens.extend(_tokens_of(match.lastgroup, match[match.lastgroup]))
        if len(tokens) > MAX_TOKENS:
            raise TooLargeError(f"the text has more than {MAX_TOKENS} tokens")
        position = match.end()
    return tokens


def _tokens_of(group: str, text: str) -> list[Token]:
    if group == "number":
        if len(text) > MAX_DIGITS:
            raise TooLargeError(f"a number has more than {MAX_DIGITS} characters")
        return [Token("number", text)]
    if group == "sign":
        sign = _SIGN_OF.get(text, text) if text not in "{}" else text
        return [Token("sign", sign)]
    if group == "command":
        return [_command(text[1:])]
    return _word(text)


def _command(name: str) -> Token:
    name = _COMMAND_OF.get(name, name)
    if name in ("or", "and"):
        return Token("join", name)
    return Token("sign", _SIGN_OF[name]) if name in _SIGN_OF else Token("command", name)


def _word(text: str) -> list[Token]:
    if text.startswith("\\"):
        text = text[text.index("{") + 1 : -1].strip()
    name = _COMMAND_OF.get(text, text)
    if name in _WORDS:
        return [_command(name)]
    if not text.isalpha() or not text.isascii() or len(text) > _LONGEST_NAMES:
        raise UnreadableError(f"{text[:20]!r} is not mathematics")
    return [Token("name", letter) for letter in text]
