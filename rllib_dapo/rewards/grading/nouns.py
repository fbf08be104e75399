"""Read a number and the noun of what was counted: `34 llamas`, `9 (apples)`.

No noun is on a list. Instead, the words that change a number (`34 thousand`), limit it (`34 or
more`), deny it or make a sentence of it are listed, and with one of them nothing is read.
"""

from __future__ import annotations

import re
from typing import Final

_NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    " fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy"
    " eighty ninety hundred hundreds thousand thousands million millions billion billions"
    " trillion trillions mil mill grand lakh lakhs crore crores gross dozen dozens score"
    " scores tens ones half halves third thirds quarter quarters fourth fourths fifth fifths"
    " sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths hundredth"
    " hundredths thousandth thousandths millionth millionths once twice thrice double doubled"
    " doubles triple tripled couple percent percents percentage permille ppm negative minus"
    " first second infinite infinity none nothing pi"
)
_OPERATORS = (
    "plus times over by divided multiplied squared cubed square cube root roots power powers"
    " mod modulo factorial choose to point remainder raised log ln lg exp sqrt sin cos tan sum"
    " product difference alpha beta gamma delta theta lambda mu phi omega sigma rho tau base"
)
_OTHERS = (
    "or nor not no never neither except excluding but if unless when where whereas than more"
    " less fewer greater least most about approximately approx around roughly nearly almost"
    " maybe perhaps probably possibly between minimum maximum other others else wrong"
    " incorrect false is are was were be isn aren equal equals equal short below under above"
    " before after beyond up down bc bce ad am pm instead vs versus rather would could should"
    " might can cannot because since so then assuming question unknown abc etc any some each"
    " extra additional further upward upwards"
)
CHANGING: Final = frozenset(f"{_NUMBER_WORDS} {_OPERATORS} {_OTHERS}".split())
"""The words that make another number, or no statement, of a number that stands beside them."""

_TEXT = re.compile(r"\\(?:text|textrm|textit|textbf|textnormal|mathrm|mbox|rm)\s?\{([^{}]*)\}")
_SPACES = re.compile(r"(?:\\[,;:! ]|~|\\q?quad(?![A-Za-z])|\s)+")
_COUNTED = re.compile(
    r"(?P<before>(?:there (?:are|is|were|was|will be)|(?:a |the )?total(?: of)?|exactly"
    r"|(?:he|she|it|they|we|i|you) (?:has|have|had|needs?|costs?|takes?|makes?|made|earn(?:s|ed)"
    r"|spends?|spent|pays?|paid|gets?|got)) )?"
    r"(?P<number>(?:[^A-Za-z]|\\[dtc]?frac){0,80}?[0-9}])(?: \((?P<bracketed>[A-Za-z' -]{2,60})\)"
    r"|[ -](?P<words>[A-Za-z' -]{2,80})[.!]?)?",
    re.IGNORECASE,
)
_VOWEL = re.compile(r"[aeiouy]", re.IGNORECASE)
_WORDS: Final = 8


def split_noun(text: str) -> tuple[str, frozenset[str]] | None:
    """Split a text into a number and the words of its noun, which are stemmed.

    Args:
        text: a text without math delimiters or emphasis.

    Returns:
        None if the text has no noun, or if one of its words changes the number.
    """
    if len(text) > 200 or "=" in text or not text[-1:].strip("0123456789"):
        return None
    text = _SPACES.sub(" ", _TEXT.sub(r" \1 ", text)).strip()
    match = _COUNTED.fullmatch(text)
    if match is None or (match.lastgroup in (None, "number") and not match["before"]):
        return None
    words = re.split(r"[ -]+", (match["bracketed"] or match["words"] or "").lower().strip())
    if not plain_words(words) or len(words) > _WORDS:
        return None
    return match["number"].strip(), frozenset(stem(word) for word in words)


def plain_words(words: list[str]) -> bool:
    """Return whether all are words of a language, none of which changes a number beside it."""
    if not words[0] or len(words[0]) < 3:  # x, ab and cm are no nouns.
        return words == [""]
    return all(
        word in ("a", "i")
        or (len(word) > 1 and word not in CHANGING and _VOWEL.search(word) is not None)
        for word in words
    )


def stem(word: str) -> str:
    """Return a word without its plural ending."""
    word = word.replace("'", "")
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if re.search(r"(?:s|x|z|ch|sh)es\Z", word):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word
