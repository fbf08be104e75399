"""Read the letter of a multiple choice.

`(C) 34`, `C. 34`, `c` and `Option C` choose C. `C or D`, `CAT` and `A, C` choose nothing.
"""

from __future__ import annotations

import re

_FONT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|rm)\s?\{([^{}]*)\}")
_SPACE = re.compile(r"(?:\\[,;:! ]|~|\\q?quad(?![A-Za-z])|[\s*_$`])+")
_GOLD = re.compile(r"(?:\(([A-Ja-j])\)|([A-J])[.):]?)\Z")
_ANSWER = re.compile(
    r"(?:(?i:the )?(?i:correct |final )?(?i:option|choice|answer)(?i: is)?:? )?"
    r"(?:[(\[]([A-Ja-j])[)\]](?P<full>.*)|([A-Ja-j])(?:[.):](?P<rest> .*|)|))\Z"
)
_SECOND = re.compile(
    r"(?i:\b(?:or|and|not)\b ?[(\[]?[a-j]\b)|[(\[][A-Ja-j][)\]]|(?<![A-Za-z])[A-J](?:[.):]|\Z)"
)
_LONGEST = 300


def choice_of(gold: str) -> str:
    """Return the capital letter that a ground truth chooses, or "".

    Only A to J are choices. A small letter is one in parentheses only; otherwise it is a variable.
    """
    match = _GOLD.match(_plain(gold))
    return (match[1] or match[2]).upper() if match else ""


def chosen(answer: str) -> str:
    """Return the capital letter that an answer chooses, or "" if it chooses none, or several.

    What stands behind the letter is the text of the choice; no second letter may stand in it. `e`
    and `i` alone are the constants.
    """
    if len(answer) > _LONGEST:
        return ""
    text = _plain(answer)
    match = _ANSWER.match(text)
    if match is None or text in ("e", "i"):
        return ""
    rest = match["full"] or match["rest"] or ""
    return "" if _SECOND.search(rest) else (match[1] or match[3]).upper()


def _plain(text: str) -> str:
    for _ in range(3):
        text = _FONT.sub(r"\1", text)
    return _SPACE.sub(" ", text).strip()
