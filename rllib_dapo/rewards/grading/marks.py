r"""Remove what only sets a text off: math delimiters, emphasis, backticks, tags of HTML.

It does not matter where a mark closes: `$34$ cm`, `**34** cm` and `34 cm` are one text. A mark is
replaced by a space where its loss would join two numbers or words.
"""

from __future__ import annotations

import re

_ANY = re.compile(r"[$`*_<]|\\[()\[\]]|\\(?:text|math|bold|emph|under)")
# Two backslashes are a line break in a matrix, and \$ is a currency: both are left as they are.
_DELIMITER = re.compile(r"\\[\\$]|((?:\\[()\[\]]|\$|`)+)")
_RUN = re.compile(
    r"\*{1,3}|(?<![A-Za-z0-9)}\]_])_{1,2}(?!_)|(?<=[A-Za-z0-9)}\].%!])_{1,2}(?![_\w{])"
)
_TAG = re.compile(
    r"</?(?:b|strong|em|i|u|span|mark|code|p|div|center)(?:\s[^<>]{0,200})?>|<br ?/?>"
)
_FONT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:bf|rm|it|sf|tt)|boldsymbol|emph|underline)"
    r"\s?\{\s*([-+]?[0-9][^{}]*)\}"
)
_OPENS_AFTER = frozenset(" \t\n([{,;:=\"'-+|")
_CLOSES_BEFORE = frozenset(" \t\n)]},;:.!?%\"'\\-|")


def without_marks(text: str) -> str:
    r"""Remove delimiters, emphasis and fonts of numbers from `text`, wherever they stand.

    A star between two factors and `x**2` are no emphasis, and stay. The time is linear in the
    length of the text.

    Example: `**$34$** \textbf{ cm}` gives `34 \textbf{ cm}`.
    """
    if not _ANY.search(text):
        return text
    text = _DELIMITER.sub(lambda m: _gap(m) if m[1] else m[0], text)
    if "</" in text or "<br" in text:
        text = _TAG.sub(_gap, text)
    if "*" in text or "_" in text:
        text = _without_emphasis(text)
    return _FONT.sub(lambda m: _apart(text, m.start()) + m[1], text) if "\\" in text else text


def _gap(match: re.Match[str]) -> str:
    text, start, end = match.string, match.start(), match.end()
    if text[start - 1 : start] == ",":
        return " "  # $1$,$234$ is a list, and not the number 1,234.
    return " " if text[start - 1 : start].isalnum() and text[end : end + 1].isalnum() else ""


def _apart(text: str, start: int) -> str:
    return " " if text[start - 1 : start].isalnum() else ""


def _without_emphasis(text: str) -> str:
    """Remove pairs of `*`, `**`, `_` and `__`, and a closing one whose opening one is missing."""
    removed: list[tuple[int, int]] = []
    opened: dict[str, list[tuple[int, int]]] = {}
    for match in _RUN.finditer(text):
        before, after = text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
        mark, span = match.group(), match.span()
        if (not after or after in _CLOSES_BEFORE) and before and not before.isspace():
            if opened.get(mark):
                removed += [opened[mark].pop(), span]
            elif not re.match(r"\s*[-+0-9(\\{]|\s*[A-Za-z](?![A-Za-z])", text[match.end() :][:40]):
                removed.append(span)  # The opening mark stands before the marker "Answer:".
        elif (not before or before in _OPENS_AFTER) and after and not after.isspace():
            opened.setdefault(mark, []).append(span)
    pieces, at = [], 0
    for start, end in sorted(removed):
        joins = text[start - 1 : start].isalnum() and text[end : end + 1].isalnum()
        pieces.append(text[at:start] + (" " if joins else ""))
        at = end
    return "".join(pieces) + text[at:]
