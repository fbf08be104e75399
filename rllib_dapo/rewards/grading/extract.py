"""Find the answer in a completion, either by the recipe's rule or as people write it.

Neither function raises, whatever the text is, and both take a time linear in its length.
"""

from __future__ import annotations

import re
from typing import Final

STRICT_WINDOW: Final = 300
"""How many characters at the end of a completion the recipe's rule reads."""
ROBUST_WINDOW: Final = 100_000
"""How many characters at the end of a completion the robust rule reads."""
MAX_ANSWER: Final = 2_000
"""The longest answer that is read, in characters. A longer one is refused."""

_STRICT = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")

_SAME_CHARACTER = str.maketrans(
    {chr(0xFF00 + i): chr(0x20 + i) for i in range(1, 95)}  # fullwidth forms of ASCII
    | {"\u2212": "-", "\u2013": "-", "\ufe63": "-", "\u2044": "/", "。": ".", "，": ","}
    | dict.fromkeys("\u00a0\u3000\u2002\u2003", " ")
    | dict.fromkeys("\u200b\u200c\u200d\u200e\u2060\ufeff", None)
)

# The repeats are bounded on purpose. Otherwise a megabyte of spaces would be scanned again from
# every `answer` that stands before it.
_MARKER = re.compile(
    r"(?i)(?<![a-z])answer[ \t*_`}\"]{0,8}(?:is[ \t*_]{0,8})?:"
    r"|答案[ \t*_`]{0,8}(?:应该?)?(?:[是为為][ \t*_`]{0,8}:?|:)"
)
_FALLBACKS = (
    re.compile(r"(?m)^####[ \t]*([^\n]+)"),  # GSM8K
    re.compile(r"(?i)(?<![a-z])answer is[ \t]{0,8}([^\n]{1,200})"),
)
_BOX_OR_BRACE = re.compile(r"\\(?:boxed|fbox)\s{0,8}\{|\\[^a-zA-Z]|[{}]")
_FENCE = re.compile(r"```[A-Za-z]{0,20}[ \t]{0,8}\n?")

_LEADING = re.compile(
    r"(?i)(?:[\s*`_\"“:~]|\\[,;! ]|\\displaystyle(?![a-z])|\\[(\[]|\$"
    r"|(?:the |my )?(?:final |correct )?answer is(?![a-z])|\\text(?:bf)?\{answer:? ?\})+"
)
_NAME = re.compile(r"\\?[A-Za-z](?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9]{1,10}\}))?\s{0,8}=")
_WRAPPER = re.compile(
    r"(?:\\(?:boxed|fbox|text|textbf|textrm|textit|mathbf|mathrm|mbox|bm|boldsymbol)\s?)?\{"
)
_PARENTHESES = re.compile(r"\(([A-Za-z0-9.+-]{1,50})\)\Z")
# The answers in the few-shot prompt of the Minerva paper end with this.
_MINERVA_TAIL = "I hope it is correct"
_TAIL_CHARACTERS = ' \t\r\n\v\f*`_"”'


def extract_strict(text: str) -> str | None:
    """Find the answer by the recipe's rule: the last `Answer: …` in the last 300 characters."""
    matches = _STRICT.findall(text[-STRICT_WINDOW:])
    return matches[-1].strip() if matches else None


def extract_robust(text: str, *, keep_name: bool = False) -> str | None:
    r"""Find the answer as people write it, without its wrapping; return None if there is none.

    A name before the answer (`x = 34`) counts as wrapping, too, unless `keep_name` is set.

    The last `Answer:` or `答案:` line or complete `\boxed{}` wins, whichever comes later. If there
    is neither, the last `#### …` line is taken, and then the last `answer is …`. An answer above
    `MAX_ANSWER` characters is returned uncleaned and cut to one character more than the limit, so
    that the grader refuses it.

    Example: `**Answer:** $\boxed{34}$.` gives `34`.
    """
    text = same_characters(text[-ROBUST_WINDOW:]).rstrip(_TAIL_CHARACTERS)
    marker, line = _last_marked(text)
    box_end, boxed = _last_box(text)
    found = boxed if boxed is not None and box_end > marker else line
    if found is None:
        found = _fallback(text)
    if found is None or len(found) > MAX_ANSWER:
        return found if found is None else found[: MAX_ANSWER + 1]
    return clean(found, keep_name=keep_name) or None


def last_box(text: str) -> str | None:
    r"""Return the cleaned content of the last complete `\boxed{}` or `\fbox{}`, or None."""
    content = _last_box(same_characters(text))[1]
    return None if content is None else clean(content[: MAX_ANSWER + 1])


def same_characters(text: str) -> str:
    """Replace look-alikes of ASCII characters (fullwidth forms, minus signs, odd spaces)."""
    return text.translate(_SAME_CHARACTER)


def clean(text: str, *, keep_name: bool = False) -> str:
    """Remove emphasis, math delimiters, boxes and a closing full stop around an answer.

    The name before it, as in `x = 34`, is removed as well unless `keep_name` is set. The function
    is idempotent. Each layer costs one pass, so it is meant for texts of up to `MAX_ANSWER`
    characters.
    """
    while True:
        peeled = _peel(text, keep_name=keep_name)
        if peeled == text:
            return text
        text = peeled


def _peel(text: str, *, keep_name: bool) -> str:
    text = text.rstrip(_TAIL_CHARACTERS)
    if leading := _LEADING.match(text):
        text = text[leading.end() :]
    for rule in (_cut_tail, _unwrap, _cut_remainder):
        peeled = rule(text)
        if peeled != text:
            return peeled
    if not keep_name and text.count("=") == 1 and (name := _NAME.match(text)):
        return text[name.end() :]  # x = 34 gives the answer 34, but 5 = 34 gives none.
    return text


def _cut_tail(text: str) -> str:
    """Remove a closing math delimiter or punctuation mark."""
    if text.endswith(("\\)", "\\]", "\\,", "\\;")):
        return text[:-2]
    if text.endswith(_MINERVA_TAIL):
        return text[: -len(_MINERVA_TAIL)]
    full_stop = text.endswith(".") and not text.endswith("..")  # 3.14... is not 3.14.
    dollar = text.endswith("$") and not text.endswith("\\$")
    # A backslash at the end is half of a line break, or a control space that lost its space.
    return text[:-1] if full_stop or dollar or text.endswith((",", ";", "\\")) else text


def _unwrap(text: str) -> str:
    """Return what is inside the box, font, braces or parentheses."""
    if (wrapper := _WRAPPER.match(text)) and _closing(text, wrapper.end()) == len(text) - 1:
        return text[wrapper.end() : -1]
    if parentheses := _PARENTHESES.match(text):
        return parentheses[1]
    return text


def _cut_remainder(text: str) -> str:
    """Remove half of a pair of brackets whose other half stands before the marker."""
    if text.count("}") > text.count("{"):  # as in \text{Answer: 34} or \textbf{Answer:} 34
        if text.startswith("}"):
            return text[1:]
        return text.removesuffix("}")
    if "(" not in text and "[" not in text:  # as in (Answer: 34)
        return text.removesuffix(")")
    return text


def _closing(text: str, start: int) -> int:
    """Return the index of the brace that closes the one before `start`, or -1."""
    depth = 1
    for match in re.finditer(r"\\.|[{}]", text[start:]):
        if match.group() == "{":
            depth += 1
        elif match.group() == "}":
            depth -= 1
            if depth == 0:
                return start + match.start()
    return -1


def _last_marked(text: str) -> tuple[int, str | None]:
    for match in reversed(list(_MARKER.finditer(text))):
        rest = text[match.end() : match.end() + 2 * MAX_ANSWER].lstrip(" \t\r\n*_")
        if rest:
            return match.end(), _first_answer(rest)
    return -1, None


def _first_answer(rest: str) -> str:
    """Return the first line of what follows a marker, or the math block that opens there."""
    if fence := _FENCE.match(rest):
        rest = rest[fence.end() :].lstrip()
    for opening, closing in (("\\[", "\\]"), ("$$", "$$")):
        if rest.startswith(opening) and (end := rest.find(closing, 2)) > 0:
            return " ".join(rest[2:end].split())
    return rest.split("\n", 1)[0]


def _last_box(text: str) -> tuple[int, str | None]:
    """Return the end and the content of the complete, non-empty box that closes last."""
    first = min((i for i in (text.find("\\boxed"), text.find("\\fbox")) if i >= 0), default=-1)
    if first < 0:
        return -1, None
    starts: list[int] = []  # where the content of a box begins; -1 for any other brace
    last = (-1, -1)
    for match in _BOX_OR_BRACE.finditer(text, first):
        piece = match.group()
        if piece == "}":
            start = starts.pop() if starts else -1
            if start >= 0 and text[start : min(match.start(), start + MAX_ANSWER)].strip():
                last = (start, match.start())
        elif piece.endswith("{") and piece != "\\{":
            starts.append(-1 if piece == "{" else match.end())
    start, end = last
    return (end, text[start:end]) if start >= 0 else (-1, None)


def _fallback(text: str) -> str | None:
    for pattern in _FALLBACKS:
        matches = pattern.findall(text)
        if matches:
            return str(matches[-1]).split(". ")[0]
    return None
