r"""Brings the printed text of an answer into one form, and splits its unit off.

The result is plain LaTeX without size and spacing commands, in which characters that look the same
are the same.
"""

from __future__ import annotations

import re

from rllib_dapo.cli.transform.question import WORDS, RefusalError
from rllib_dapo.rewards.grading.extract import clean, same_characters
from rllib_dapo.rewards.grading.normalize import fraction_signs
from rllib_dapo.rewards.grading.units import canonical_unit

_SIZE = re.compile(r"\\(?:left|right|[bB]ig{1,2}[lr]?|displaystyle)(?![A-Za-z])")
_SPACING = re.compile(r"(?<!\\)\\[,;:! ]|~|\\q?quad(?![A-Za-z])")
_ARGUMENT = r"\s*(?:\{([^{}]*)\}|([0-9A-Za-z]))"
_SHORT_FRACTION = re.compile(rf"\\frac(?![A-Za-z]){_ARGUMENT}{_ARGUMENT}")
_SHORT_ROOT = re.compile(r"\\sqrt(\[[0-9]\])?\s*([0-9A-Za-z])")
_BRACED_POWER = re.compile(r"([\^_])\{([0-9]+)\}")
_GROUP = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:(?:,|\{,\})[0-9]{3})+(?![0-9,])")
_UNIT = re.compile(
    r"\s*("
    r"\\(?:text|textrm|mathrm|mbox|rm)\s*\{[^{}]*\}(?:\s*\^\s*\{?[23]\}?)?"
    r"|\^\s*\{?\s*\\circ\s*\}?|°|\\?%"
    r"|(?<=[0-9}\s])[A-Za-z][A-Za-z/ ]*(?:\s*\^\s*\{?[23]\}?)?"
    r")\s*\Z"
)
_UNIT_PHRASES = {"%": "as a percentage", "degree": "in degrees", "foot": "in feet"}


def printed(answer: str) -> str:
    """Remove wrapping and spacing from an answer, and write fractions and roots with braces."""
    text = clean(same_characters(" ".join(answer.split())))
    text = clean(_SPACING.sub(" ", _SIZE.sub("", fraction_signs(text))))
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = _SHORT_FRACTION.sub(_with_braces, text)
    text = _SHORT_ROOT.sub(r"\\sqrt\1{\2}", text)
    return _BRACED_POWER.sub(r"\1{\2}", text).strip()


def without_groups(text: str) -> str:
    r"""Remove the commas between thousands: `1,000\pi` becomes `1000\pi`."""
    return _GROUP.sub(lambda match: re.sub(r"[^0-9]", "", match.group()), text)


def split_unit(text: str) -> tuple[str, str | None]:
    r"""Split a trailing unit off: `12\pi \text{ cm}` gives `12\pi` and `in centimetres`.

    Returns:
        The text without the unit, and the unit in words, or None if there is no unit.

    Raises:
        RefusalError: the text ends with words that are not a known unit.
    """
    match = _UNIT.search(text)
    if match is None or not match.start():
        return text, None
    unit = canonical_unit(match[1].replace(" ^", "^"))
    if unit is None:
        if "\\" in match[1] or len(match[1].strip()) > 1:
            raise RefusalError(WORDS, f"{match[1].strip()[:40]!r} is not a known unit")
        return text, None  # A single letter may be the variable of a polynomial.
    return text[: match.start()].strip(), unit_phrase(unit)


def unit_phrase(unit: str | None) -> str | None:
    """Return a canonical unit in words, such as `in square metres`; None without a unit."""
    if not unit:
        return None
    name, _, power = unit.partition("^")
    if name in _UNIT_PHRASES and not power:
        return _UNIT_PHRASES[name]
    first, _, rest = name.partition(" per ")
    first = {"foot": "feet", "inch": "inches"}.get(first, first + "s")
    plural = first + (" per " + rest if rest else "")
    prefix = {"": "", "2": "square ", "3": "cubic "}[power]
    return f"in {prefix}{plural}"


def _with_braces(match: re.Match[str]) -> str:
    top, bottom = (match[1] or match[2] or ""), (match[3] or match[4] or "")
    return f"\\frac{{{top}}}{{{bottom}}}"
