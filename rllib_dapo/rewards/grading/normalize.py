"""Make answers that are not numbers comparable as strings, for the robust grader.

No word and no equation is ever dropped. `recipe` has the rule of the strict grader.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from rllib_dapo.rewards.grading.extract import clean

# An \\overline over letters is a name; over digits it makes another number.
_NAMED_FONT = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname|overline(?=\{[A-Za-z]))"
    r"\{([^{}]*)\}"
)
_FRACTION = re.compile(r"\\frac\s?([0-9A-Za-z])\s?([0-9A-Za-z])")
_HALF_BRACED = re.compile(r"\\frac(\{[^{}]*\})([0-9A-Za-z])")
_BRACED_LAST = re.compile(r"\\frac\s?([0-9A-Za-z])(\{[^{}]*\})")
_ROOT = re.compile(r"\\sqrt\s?([0-9A-Za-z])")

_SIGNS = str.maketrans(
    {
        "π": r"\pi ",
        "√": r"\sqrt ",
        "∞": r"\infty ",
        "×": r"\times ",
        "÷": r"\div ",
        "·": r"\cdot ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∅": r"\emptyset ",
        "±": r"\pm ",
        "°": r"^\circ ",
        "²": "^2",
        "³": "^3",
        "½": r"\frac{1}{2}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
        "⅓": r"\frac{1}{3}",
        "⅔": r"\frac{2}{3}",
    }
)
_RAISED = re.compile("[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{2,}|[⁻⁺][⁰¹²³⁴⁵⁶⁷⁸⁹]|[⁰¹⁴⁵⁶⁷⁸⁹]")
_RAISED_DIGITS = str.maketrans("⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹", "-+0123456789")
_SIZE = re.compile(r"\\(?:left|right|[bB]ig{1,2}[lr]?|displaystyle)(?![A-Za-z])")
_SPACING = re.compile(r"\\[,;:! ]|~|\\q?quad(?![A-Za-z])")
_SYNONYM = re.compile(r"\\(?:([dtc]frac)|(leq|geq|neq))(?![A-Za-z])")
_LONE_BRACES = re.compile(r"([\^_])\{([^{}\s\\])\}")
_SPACE_KEPT = re.compile(r"(?<=[0-9])\s+(?=[0-9])|(?<=[A-Za-z])\s+(?=[A-Za-z])")
_SENTENCE = re.compile(r"[A-Z]?[a-z]+(?:[ ,.'-]{1,3}[A-Z]?[a-z]+)*")
_TIME_OF_DAY = re.compile(r"(?<=[0-9 ])([AaPp])\.? ?[Mm]\b\.?")
_WORDS = frozenset({"yes", "no", "true", "false", "none", "even", "odd"})


def normalize_robust(text: str, *, keep_name: bool = False) -> str:
    r"""Return the form in which the robust grader compares texts; `clean` explains `keep_name`.

    Example: `$\dfrac 1 2 \pi$` and `\frac{1}{2}π` both give `\frac{1}{2}\pi`.
    """
    if text.isascii() and text.isdigit():
        return text  # Most ground truths are integers, to which no rule applies.
    return _settle(partial(_robust_once, keep_name=keep_name), text)


def fraction_signs(text: str) -> str:
    """Write single characters such as `½`, `²` and `π` in `text` out in LaTeX."""
    if not text.isascii():
        text = _RAISED.sub(lambda m: "^{" + m.group().translate(_RAISED_DIGITS) + "}", text)
    return text.translate(_SIGNS)


def without_layout(text: str) -> str:
    r"""Remove commands for sizes (`\left`) from `text`, and make LaTeX's spaces plain ones."""
    return _SPACING.sub(" ", _SIZE.sub("", text))


def _settle(step: Callable[[str], str], text: str) -> str:
    # Each rule shortens the text or completes the braces of one \frac or \sqrt, so this ends by
    # itself. The bound only makes that visible. Callers keep texts below 2,000 characters.
    for _ in range(2 * len(text) + 8):
        settled = step(text)
        if settled == text:
            break
        text = settled
    return text


def _robust_once(text: str, *, keep_name: bool) -> str:
    text = clean(text, keep_name=keep_name).translate(_SIGNS)
    text = without_layout(text)
    text = _SYNONYM.sub(lambda m: "\\frac" if m[1] else "\\" + m[2][:-1], text)
    text = _NAMED_FONT.sub(r"\1", text)
    text = _FRACTION.sub(r"\\frac{\1}{\2}", text)
    text = _HALF_BRACED.sub(r"\\frac\1{\2}", text)
    text = _BRACED_LAST.sub(r"\\frac{\1}\2", text)
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    text = _LONE_BRACES.sub(r"\1\2", text)
    text = _TIME_OF_DAY.sub(lambda m: m[1].lower() + "m", text)
    text = "".join(_SPACE_KEPT.sub("\0", text).split()).replace("\0", " ")
    return text.lower() if _is_prose(text) else text


def _is_prose(text: str) -> bool:
    """Return whether capitals mean nothing: in Yes, No solution and EVELYN, but not in AB."""
    if text.lower() in _WORDS or _SENTENCE.fullmatch(text):
        return True
    return len(text) > 4 and text.isalpha() and text.isupper() and not text.startswith("ABCD")
