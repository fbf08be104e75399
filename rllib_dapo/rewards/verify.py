"""Decide whether a response is correct: two graders, one `Verdict`.

`strict` is the DAPO recipe's rule, for runs that are to be compared with the paper: the
last `Answer: …` within the last 300 characters, equal as a string after normalising. It
inherits the recipe's habits (`**34**`, `034` and `34.` are wrong; of `5 = 34` it reads 34).
`robust` finds the answer as people write it and compares numbers by value.

Neither evaluates anything: an answer is a value or it is wrong. There are no timeouts
because there is nothing to wait for, so both run in threads, actors and event loops.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

from rllib_dapo.errors import DataError, SettingError
from rllib_dapo.rewards.extract import (
    MAX_ANSWER,
    STRICT_WINDOW,
    clean,
    extract_robust,
    extract_strict,
    same_characters,
)
from rllib_dapo.rewards.literals import Number, TooLargeError, parse_number
from rllib_dapo.rewards.normalize import fraction_signs, normalize_robust, normalize_strict

MatchedBy = Literal["string", "value", "no_answer", "different", "refused"]
"""How a verdict came about: equal as `string` or by `value` (both correct); `no_answer`
found, `different`, or `refused` as too long or too large to read (all wrong)."""

Grader = Literal["robust", "strict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of grading one response.

    Attributes:
        correct: the verdict.
        extracted: the answer found, for people to read; cut when very long.
        matched_by: see `MatchedBy`.
    """

    correct: bool
    extracted: str | None
    matched_by: MatchedBy


@dataclass(frozen=True, slots=True)
class Gold:
    """A ground truth, read once.

    Attributes:
        text: as the data set has it.
        strict: its form for the strict grader.
        plain: without wrapping.
        symbolic: its form for comparing symbolic answers in the robust grader.
        number: its value when it is a number.
    """

    text: str
    strict: str
    plain: str
    symbolic: str
    number: Number | None


def parse_gold(gold: object) -> Gold:
    """Read a ground truth.

    Args:
        gold: text, or any number (numpy scalars too).

    Raises:
        DataError: nothing that an answer could ever equal: empty, not a finite number, a
            worked solution instead of an answer, unbalanced braces, a division by zero.
    """
    return _parse_gold(_gold_text(gold))


def grade(answer_text: str, gold: object, grader: str = "robust") -> Verdict:
    """Grade a whole response against the ground truth. The two are not interchangeable.

    Args:
        answer_text: the response, reasoning and all.
        gold: the ground truth: text, a number, or a `Gold` read before.
        grader: `robust` or `strict`.

    Raises:
        DataError: the ground truth cannot be read.
        SettingError: there is no such grader.
    """
    return find_grader(grader)(answer_text, gold if isinstance(gold, Gold) else parse_gold(gold))


def find_grader(name: str, setting: str = "grader") -> Callable[[str, Gold], Verdict]:
    """The grader called `name`.

    Raises:
        SettingError: there is none; the message suggests the nearest.
    """
    if name not in GRADERS:
        near = difflib.get_close_matches(str(name), GRADERS, n=1, cutoff=0.0)
        raise SettingError(
            f"{setting}={name!r}: no such grader; use one of {', '.join(GRADERS)}"
            f" (did you mean {near[0]!r}?)",
            setting,
        )
    return GRADERS[name]


def grade_strict(answer_text: str, gold: Gold) -> Verdict:
    """The recipe's grader."""
    extracted = extract_strict(answer_text)
    if extracted is None:
        return Verdict(False, None, "no_answer")
    if normalize_strict(extracted) == gold.strict:
        return Verdict(True, extracted, "string")
    return Verdict(False, extracted, "different")


def grade_robust(answer_text: str, gold: Gold) -> Verdict:
    """The grader for answers as people write them."""
    extracted = extract_robust(answer_text)
    if extracted is None:
        return Verdict(False, None, "no_answer")
    if len(extracted) > MAX_ANSWER:
        return Verdict(False, extracted[:STRICT_WINDOW] + "…", "refused")
    matched_by = _compare(extracted, gold)
    return Verdict(matched_by in ("string", "value"), extracted, matched_by)


def _compare(extracted: str, gold: Gold) -> MatchedBy:
    if extracted == gold.plain:
        return "string"
    if gold.number is None:
        return "string" if normalize_robust(extracted) == gold.symbolic else "different"
    # A number is only ever equal to a number: never let a string comparison that ignores
    # spaces turn the list "3 4" into 34.
    try:
        number = parse_number(fraction_signs(extracted))
    except TooLargeError:
        return "refused"
    return "value" if number is not None and number.equals_gold(gold.number) else "different"


GRADERS: Mapping[str, Callable[[str, Gold], Verdict]] = MappingProxyType(
    {"robust": grade_robust, "strict": grade_strict}
)
"""The graders by name."""


def _gold_text(gold: object) -> str:
    item: Any = gold.item() if hasattr(gold, "item") else gold  # numpy scalars
    if isinstance(item, str):
        return item
    if isinstance(item, bool) or not isinstance(item, numbers.Real):
        raise DataError(f"found {gold!r:.80} ({type(gold).__name__}), not a text or a number")
    if isinstance(item, float):
        if not math.isfinite(item):
            raise DataError(f"found {item!r}, not a finite number")
        # An integer column with a gap in it reaches us as floats: 34.0 was written as 34.
        return str(int(item)) if item.is_integer() and abs(item) < 1e15 else repr(item)
    return str(item)


@lru_cache(maxsize=50_000)
def _parse_gold(text: str) -> Gold:
    stripped = text.strip()
    if not stripped:
        raise DataError("found an empty ground truth")
    if len(stripped) > STRICT_WINDOW or ("\n" in stripped and "\\begin{" not in stripped):
        raise DataError(
            f"found a text of {len(stripped)} characters ({stripped[:40]!r}…), which looks like a"
            " worked solution; the ground truth is the final answer alone, or ends in"
            " '#### answer' or \\boxed{answer}"
        )
    flat = same_characters(" ".join(stripped.split()))
    plain = clean(flat)
    symbolic = normalize_robust(flat)
    strict = normalize_strict(stripped)
    if not plain or not symbolic or not strict or plain.lower() in ("nan", "inf", "-inf", "null"):
        raise DataError(f"found {stripped!r}, which holds no answer")
    braces = flat.replace("\\{", "").replace("\\}", "")
    if braces.count("{") != braces.count("}"):
        raise DataError(f"found {stripped!r}, whose braces do not balance")
    try:
        number = parse_number(fraction_signs(plain), trusted=True)
    except (TooLargeError, ZeroDivisionError) as error:
        raise DataError(f"found {stripped[:80]!r}: {error}") from error
    return Gold(stripped, strict, plain, symbolic, number)
