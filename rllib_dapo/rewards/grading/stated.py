r"""Find the name in front of a value that is stated: `x = 34`, `AB = 34`, `m+n = 34`, `f(2) = 5`.

What stands left of `=` has to be made of letters. `23+11 = 34` and `41=42` state nothing, and
`2x = 34` is an equation that is still to be solved.
"""

from __future__ import annotations

import re

from rllib_dapo.rewards.grading.nouns import CHANGING, plain_words

_GREEK = (
    r"\\(?:alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma"
    r"|tau|phi|varphi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega|ell)(?![A-Za-z])"
)
_INDEX = (
    r"(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9+-]{1,10}\}|\{?\\(?:text|mathrm)\{[a-z]{1,12}\}\}?))?'{0,2}"
)
_LETTER = rf"(?:[A-Za-z]|{_GREEK})(?![A-Za-z]){_INDEX}"
_VARIABLE = re.compile(rf"\\?[A-Za-z]{_INDEX}\s{{0,8}}=(?!=)")
_POINT = rf"\(\s?{_LETTER}(?:\s?,\s?{_LETTER}){{1,5}}\s?\)"
# The names of values, which are no equations: a length, a value of a function, some words.
_LENGTH = (
    r"(?:m\s?)?(?:\\angle|\\triangle|∠|△)?\s?(?:[A-Z]{2,4}|\|[A-Z]{2}\||\[[A-Z]{3,6}\]"
    r"|\\(?:overline|overrightarrow)\{[A-Z]{2}\})(?:_[0-9])?"
    r"|(?:m\s?)?(?:\\angle|∠)\s?[A-Z]"
)
_CALL = rf"(?:[A-Za-z]|{_GREEK}){_INDEX}\s?\(\s?[-+]?[0-9](?:[^()=]|\([^()=]*\)){{0,30}}\)"
_WORDED = (
    r"\\(?:text|mathrm|operatorname)\{(?P<inner>[A-Za-z ]{2,60})\}"
    r"|(?P<words>[A-Za-z][A-Za-z ]{2,60})"
)
_VALUE = re.compile(rf"(?:{_LENGTH}|{_CALL}|{_POINT}|{_WORDED})\s{{0,8}}=(?!=)")
_REPEATED = re.compile(rf"(?:(?<=[,;}}\s])|\A)({_LETTER}|{_POINT})\s?=(?!=)\s*")

_TERMS = (
    (re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}"), r"(\1)/(\2)"),
    (re.compile(r"\\(?:left|right|[,;!: ])|[\s|]"), ""),
    (re.compile(r"\^(?:\{[^{}]*\}|[0-9A-Za-z])"), "^"),
    (re.compile(rf"(?:[A-Za-z]|{_GREEK})(?:{_INDEX})\((?:[^()]|\([^()]*\)){{1,30}}\)"), "v"),
    (re.compile(r"\\(?:overline|sqrt)\{[A-Za-z]{1,3}\}|\\angle"), "v"),
    (re.compile(rf"(?:[A-Za-z]|{_GREEK}){_INDEX}"), "v"),
    (re.compile(r"[0-9]+"), "n"),
    (re.compile(r"\\cdot|\\times"), "*"),
)  # fmt: skip
_TERM = r"n?\*?v\^?(?:[*/]?v\^?)*"
_SUM = rf"[-+]?{_TERM}(?:[-+]{_TERM})*"
_BRACKETS = re.compile(rf"\({_SUM}\)")
_LONGEST = 100


def after_variable(text: str) -> str | None:
    """Return what follows `x =`, or None. What follows may as well be an equation's other side."""
    if text.count("=") == 1 and (match := _VARIABLE.match(text)):
        return text[match.end() :]
    return None


def after_value_name(text: str) -> str | None:
    """Return what follows the name of a value, such as `AB =` or `f(2) =`; or None."""
    head, sign, rest = text[:_LONGEST].partition("=")
    if not sign or text.count("=") != 1 or not rest.strip():
        return None
    match = _VALUE.match(text)
    if match is None or match.end() != len(head) + 1 or _out_of_order(head):
        return None
    words = match["inner"] or match["words"]
    if words and not plain_words(words.lower().split()):
        return None
    return text[match.end() :]


def after_sum(text: str) -> str | None:
    """Return what follows a sum or product of letters, such as `m+n =`; or None.

    None of the letters may stand on the right: `x+y = 2x` is an equation.
    """
    head, sign, rest = text.partition("=")
    if not sign or text.count("=") != 1 or len(head) > _LONGEST or not rest.strip():
        return None
    words = re.findall(r"(?<![A-Za-z\\])[A-Za-z]{2,}", head)
    if any(len(word) > 4 or word.lower() in CHANGING for word in words):
        return None
    shape = head
    for pattern, name in _TERMS:
        shape = pattern.sub(name, shape)
    for _ in range(4):
        shape = _BRACKETS.sub("v", shape)
    if not re.fullmatch(_SUM, shape):
        return None
    lone = not re.search(r"[-+*/]|vv|v\^v", shape.lstrip("-+"))
    if (lone and shape not in ("v", "v^")) or (
        shape == "v^" and len(head.split("^")[0].strip()) < 2
    ):
        return None
    # A coefficient before a single product, as in 2x = 34, is an equation to be solved.
    if "n" in shape and not re.search(r"[-+]", shape[1:]):
        return None
    plain = re.sub(r"\\(?:text|mathrm)\{[^{}]*\}|\\[A-Za-z]+", "", rest)
    return (
        None if set(re.findall(r"[A-Za-z]", head)) & set(re.findall(r"[A-Za-z]", plain)) else rest
    )


def without_repeated_name(text: str, *, indexed: bool) -> str:
    """Make `-1, 3` of `x=-1, x=3`; with `indexed`, of `x_1=-1, x_2=3`, too."""
    names = [match[1] for match in _REPEATED.finditer(text)]
    if len(names) < 2 or len(names) != text.count("="):
        return text
    first = {name.split("_")[0] if indexed and "(" not in name else name for name in names}
    return _REPEATED.sub("", text) if len({"".join(n.split()) for n in first}) == 1 else text


def _out_of_order(head: str) -> bool:
    """Return whether the name is a point such as (y,x), whose values are in another order."""
    letters = re.findall(r"[a-z]", head) if re.fullmatch(r"\([a-z, ]+\)\s*", head) else []
    codes = [ord(letter) for letter in letters]
    return sorted(codes) != codes and max(codes) - min(codes) == len(codes) - 1
