"""Find the answer in a completion, either by the recipe's rule or as people write it.

Neither function raises, whatever the text is, and both take a time linear in its length.
"""

from __future__ import annotations

import re
from typing import Final

from rllib_dapo.rewards.grading.marks import without_marks
from rllib_dapo.rewards.grading.stated import (
    after_sum,
    after_value_name,
    after_variable,
    without_repeated_name,
)

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
# In the second group of fallbacks; only where no marker, box or tag is found.
_FALLBACKS = (
    re.compile(
        r"(?m)^####[ \t]{0,8}(?![*_ ]{0,4}(?i:final |the ){0,2}(?i:answer))(?=[^\n])"  # GSM8K
        r"|^[ \t#*_>`]{0,12}(?i:the |my )?(?i:final )?(?i:answer)"
        r"[ \t*_`]{0,8}(?:=[ \t*_]{0,8}|\n\s{0,40})(?=\S)"
    ),
    re.compile(r"(?i)(?<![a-z])answer is[ \t]{0,8}(?:\n\s{0,40})?(?=\S)"),
)
_BOX_OR_BRACE = re.compile(
    r"\\(?:boxed|fbox)(?:\s{0,8}\{|(?![A-Za-z])[ \t]{0,8}(?=[-+0-9(.\\]|[A-Za-z](?![A-Za-z])))"
    r"|\\[^a-zA-Z]|[{}]"
)
# TeX takes one token after \boxed; people mean all up to the end of the formula.
_BARE_END = re.compile(r"(?<!\\)\$|\\[)\]]|\n|(?<!\{)[.,;]?(?=\s[A-Za-z]{2,})|\.(?=\s)|\Z")
_LONGEST_BARE = 200
_TAG = re.compile(r"(?i)<(/?)(?:final[_ ]?)?answer>")
_ENVIRONMENT = re.compile(r"\\(begin|end)\s?\{")
_FENCE = re.compile(r"```[A-Za-z]{0,20}[ \t]{0,8}\n?")

_LEADING = re.compile(
    r"(?i)(?:[\s*`_\"“:~]|\\[,;! ]|\\displaystyle(?![a-z])|\\[(\[]|\$"
    r"|(?:the |my )?(?:final |correct )?answer is(?![a-z])|\\text(?:bf)?\{answer:? ?\})+"
)
_WRAPPER = re.compile(
    r"(?:\\(?:boxed|fbox|text|textbf|textrm|textit|textsf|texttt|textnormal|mathbf|mathrm|mathit"
    r"|mathsf|mbox|bm|boldsymbol|emph|underline)\s?)?\{"
)
_BARE_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s?(?=[^\s{])")
_NOTHING = re.compile(r"(?:[\s*_`$#>:]|\\[\[(\])])*\Z")
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

    The last `Answer:` or `答案:` line, complete `\boxed{}` or `<answer>…</answer>` wins, whichever
    comes later. If there is none, the last `#### …` line or line below a heading `Answer` is
    taken, and then the last `answer is …`. An answer above
    `MAX_ANSWER` characters is returned uncleaned and cut to one character more than the limit, so
    that the grader refuses it.

    Example: `**Answer:** $\boxed{34}$.` gives `34`.
    """
    text = same_characters(text[-ROBUST_WINDOW:]).rstrip()
    found = _find(text)
    if found is None:
        found = _fallback(text)
    if found is None or len(found) > MAX_ANSWER:
        return found if found is None else found[: MAX_ANSWER + 1]
    return clean(" ".join(found.split()), keep_name=keep_name, drop_sums=not keep_name) or None


def last_box(text: str) -> str | None:
    r"""Return the cleaned content of the last complete `\boxed{}` or `\fbox{}`, or None."""
    content = _last_box(same_characters(text))[1]
    return None if content is None else clean(" ".join(content[: MAX_ANSWER + 1].split()))


def same_characters(text: str) -> str:
    """Replace look-alikes of ASCII characters (fullwidth forms, minus signs, odd spaces)."""
    return text.translate(_SAME_CHARACTER)


def clean(text: str, *, keep_name: bool = False, drop_sums: bool = False) -> str:
    """Remove emphasis, math delimiters, boxes and a closing full stop from an answer.

    The name before it, as in `x = 34` and `AB = 34`, is removed as well unless `keep_name` is set;
    with `drop_sums`, what may also be one side of an equation is removed, too, as in `m+n = 34`.
    The function is idempotent. Each layer costs one pass, so it is meant for texts of up to
    `MAX_ANSWER` characters.
    """
    while True:
        peeled = _peel(text)
        if peeled == text and not keep_name and "=" in text:
            peeled = _without_name(text, drop_sums=drop_sums)
        if peeled == text:
            return text
        text = peeled


def _peel(text: str) -> str:
    text = without_marks(text).rstrip(_TAIL_CHARACTERS)
    if leading := _LEADING.match(text):
        text = text[leading.end() :]
    for rule in (_cut_tail, _unwrap, _cut_remainder):
        peeled = rule(text)
        if peeled != text:
            return peeled
    return text


def _without_name(text: str, *, drop_sums: bool) -> str:
    """Remove the name of a stated value: x = 34 gives the answer 34, but 5 = 34 gives none."""
    for rule in (after_variable, after_value_name, after_sum):
        if (drop_sums or rule is not after_sum) and (rest := rule(text)) is not None:
            return rest
    return without_repeated_name(text, indexed=drop_sums)


def _cut_tail(text: str) -> str:
    """Remove a closing math delimiter or punctuation mark."""
    if text.endswith(("\\)", "\\]", "\\,", "\\;")):
        return text[:-2]
    if text.endswith(_MINERVA_TAIL):
        return text[: -len(_MINERVA_TAIL)]
    # 3.14... is not 3.14, but "5 a.m.." has a full stop.
    full_stop = text.endswith(".") and (not text.endswith("..") or text[-3:-2].isalpha())
    dollar = text.endswith("$") and not text.endswith("\\$")
    # A backslash at the end is half of a line break, or a control space that lost its space.
    return text[:-1] if full_stop or dollar or text.endswith((",", ";", "\\")) else text


def _unwrap(text: str) -> str:
    """Return what is inside the box, font, braces or parentheses."""
    if (wrapper := _WRAPPER.match(text)) and _closing(text, wrapper.end()) == len(text) - 1:
        return text[wrapper.end() : -1]
    if bare := _BARE_BOX.match(text):
        return text[bare.end() :]
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


def _find(text: str) -> str | None:
    """Return what the last marker, box or pair of tags holds; None if there is none of them."""
    marker, line = _last_marked(text)
    box_end, boxed = _last_box(text)
    tag_end, tagged = _last_tagged(text)
    if tagged is not None and tag_end > max(marker, box_end):
        inner = _find(tagged)
        return tagged if inner is None else inner
    return boxed if boxed is not None and box_end > marker else line


def _last_marked(text: str) -> tuple[int, str | None]:
    for match in reversed(list(_MARKER.finditer(text))):
        rest = text[match.end() : match.end() + 2 * MAX_ANSWER]
        if rest.strip(" \t\r\n*_"):
            return match.end(), _first_answer(rest)
    return -1, None


def _last_tagged(text: str) -> tuple[int, str | None]:
    end = -1
    if "</" not in text:
        return -1, None
    for match in reversed(list(_TAG.finditer(text))):
        if match[1]:
            end = match.start()
        elif end >= 0:
            if content := text[match.end() : end].strip():
                return end, content
            end = -1
    return -1, None


def _first_answer(rest: str) -> str:
    """Return the first line of what follows a marker, or the formula that opens there."""
    rest = rest.lstrip()
    if fence := _FENCE.match(rest):
        rest = rest[fence.end() :].lstrip()
    while True:
        for opening, closing in (("\\[", "\\]"), ("$$", "$$")):
            if rest.startswith(opening) and (end := rest.find(closing, 2)) > 0:
                return rest[: end + 2] + rest[end + 2 :].split("\n", 1)[0]
        line, newline, more = rest.partition("\n")
        if not newline or not _NOTHING.match(line):
            line = _environments(rest) if "\\begin" in line else line
            return _TAG.split(line, 1)[0] if "<" in line else line
        rest = more.lstrip()


def _environments(rest: str) -> str:
    r"""Return the first line and those that follow up to the `\end` of what begins in it."""
    depth = 0
    for match in _ENVIRONMENT.finditer(rest):
        depth += 1 if match[1] == "begin" else -1
        if depth <= 0 and "\\begin" not in (tail := rest[match.start() :].split("\n", 1)[0]):
            return rest[: match.start()] + tail
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
        elif piece.startswith(("\\boxed", "\\fbox")):
            end = _BARE_END.search(text, match.end(), match.end() + _LONGEST_BARE)
            if end is not None and text[match.end() : end.start()].strip():
                last = (match.end(), end.start())
    return (last[1], text[slice(*last)]) if last[0] >= 0 else (-1, None)


def _fallback(text: str) -> str | None:
    for pattern in _FALLBACKS:
        for match in reversed(list(pattern.finditer(text))):
            found = _first_answer(text[match.end() : match.end() + 2 * MAX_ANSWER])
            return found.split(". ")[0]
    return None
