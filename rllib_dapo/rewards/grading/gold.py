"""Read a ground truth once, into every form that the graders compare with."""

from __future__ import annotations

import math
import numbers
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rllib_dapo.errors import DataError
from rllib_dapo.rewards.grading.choices import choice_of
from rllib_dapo.rewards.grading.equality import explicit
from rllib_dapo.rewards.grading.extract import MAX_ANSWER, STRICT_WINDOW, clean, same_characters
from rllib_dapo.rewards.grading.literals import Number, TooLargeError, parse_counted
from rllib_dapo.rewards.grading.normalize import fraction_signs, normalize_robust
from rllib_dapo.rewards.grading.parser import parse_math
from rllib_dapo.rewards.grading.recipe import normalize_strict
from rllib_dapo.rewards.grading.stated import after_value_name, without_repeated_name
from rllib_dapo.rewards.grading.trees import Tree, UnreadableError, kind, variables

# Three words in a row. A long list of roots has none.
_PROSE = re.compile(r"(?<!\S)[^\W\d_]+\s+[^\W\d_]+\s+[^\W\d_]+(?!\S)")


@dataclass(frozen=True, slots=True)
class Gold:
    """A ground truth in every form that the graders compare with.

    Attributes:
        text: the ground truth as it stands in the data set.
        strict: its form for the strict grader.
        plain: its text without wrapping.
        normal: its form for comparing texts in the robust grader.
        number: its value if it is a number.
        tree: its meaning as a tree if it is another value that can be compared.
        unit: the unit of that value, or "".
        named: whether it is an equation or the like, in which a name before `=` matters.
        choice: the letter, if it may be a choice of several (`C`, `(C)`); else "".
    """

    text: str
    strict: str
    plain: str
    normal: str
    number: Number | None
    tree: Tree | None = None
    unit: str = ""
    named: bool = False
    choice: str = ""


def parse_gold(gold: object) -> Gold:
    """Read a ground truth.

    Args:
        gold: a text, or any real number, also as a numpy scalar.

    Raises:
        DataError: no answer could ever equal it: it is empty, not a finite number, a worked
            solution instead of an answer, has unbalanced braces, or divides by zero.
    """
    return _parse_gold(_gold_text(gold))


def _gold_text(gold: object) -> str:
    item: Any = gold.item() if hasattr(gold, "item") else gold  # numpy scalars
    if isinstance(item, str):
        return item
    if isinstance(item, bool) or not isinstance(item, numbers.Real):
        raise DataError(f"found {gold!r:.80} ({type(gold).__name__}), not a text or a number")
    if isinstance(item, float):
        if not math.isfinite(item):
            raise DataError(f"found {item!r}, not a finite number")
        # An integer column with a missing value is read as floats: 34.0 was written as 34.
        return str(int(item)) if item.is_integer() and abs(item) < 1e15 else repr(item)
    return str(item)


@lru_cache(maxsize=50_000)
def _parse_gold(text: str) -> Gold:
    stripped = text.strip()
    if not stripped:
        raise DataError("found an empty ground truth")
    is_long = len(stripped) > STRICT_WINDOW and _PROSE.search(stripped) is not None
    several_lines = "\n" in stripped and "\\begin{" not in stripped
    if is_long or several_lines or len(stripped) > MAX_ANSWER:
        lines = stripped.count("\n") + 1
        raise DataError(
            f"found a text of {len(stripped)} characters in {lines} lines ({stripped[:40]!r}…),"
            " which looks like a worked solution or several answers; the ground truth is the final"
            " answer alone, on one line, or ends in"
            " '#### answer' or \\boxed{answer}"
        )
    flat = same_characters(" ".join(stripped.split()))
    plain = clean(flat)
    normal = normalize_robust(flat)
    strict = normalize_strict(stripped)
    if not plain or not normal or plain.lower() in ("nan", "inf", "-inf", "null"):
        raise DataError(f"found {stripped!r}, which holds no answer")
    braces = flat.replace("\\{", "").replace("\\}", "")
    if braces.count("{") != braces.count("}"):
        raise DataError(f"found {stripped!r}, whose braces do not balance")
    try:
        number = parse_counted(fraction_signs(plain), trusted=True)
    except (TooLargeError, ZeroDivisionError) as error:
        raise DataError(f"found {stripped[:80]!r}: {error}") from error
    if number is not None or plain.isalpha():
        return Gold(stripped, strict, plain, normal, number, choice=choice_of(flat))
    kept = clean(flat, keep_name=True)
    tree, unit = _read_tree(kept)
    one_name = after_value_name(kept) or without_repeated_name(kept, indexed=False) != kept
    named = tree is not None and not one_name and _names_matter(tree)
    if named or "=" in plain:  # An equation that cannot be read is compared as a text.
        named = True
        plain, normal = kept, normalize_robust(kept, keep_name=True)
    elif kept != plain:
        tree, unit = _read_tree(plain)
    return Gold(stripped, strict, plain, normal, None, tree, unit, named)


def _read_tree(text: str) -> tuple[Tree | None, str]:
    try:
        return parse_math(text)
    except (UnreadableError, TooLargeError):
        return None, ""  # It is a text, and only the same text equals it.


def _names_matter(tree: Tree) -> bool:
    """Return whether names matter: not in x = √2, but in y = 2x and in x = 2, y = 3."""
    if kind(tree) == "rel":
        value = explicit(tree)
        return value is None or bool(variables(value))
    return kind(tree) == "set" and any(kind(item) == "rel" for item in tree[2])
