"""Decide whether a completion is correct: two graders, one `Verdict`.

`strict` is the DAPO recipe's rule, for runs that are to be compared with the paper. It takes the
last `Answer: …` within the last 300 characters and compares it as a string after normalising. It
inherits the recipe's habits: `**34**`, `034` and `34.` are wrong, and from `5 = 34` it reads 34.
`robust` finds the answer as people write it and compares values.

If the ground truth is a number, only a literal can be correct. Nothing is evaluated, and no
process is needed. If it is another value (a closed form, a polynomial, a tuple, a set, an
equation …), the answer may be another form of it. It has to be of the same kind, may contain
no operation that the ground truth does not contain (see `trees.allowed`), and may leave no work
to be done that the ground truth does not leave (see `unfinished`). Comparisons that could
take long are made in processes that can be killed (see `pool`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal

from rllib_dapo.errors import SettingError
from rllib_dapo.rewards.grading.choices import chosen
from rllib_dapo.rewards.grading.equality import comparable, equal, on_the_line
from rllib_dapo.rewards.grading.extract import (
    MAX_ANSWER,
    STRICT_WINDOW,
    extract_robust,
    extract_strict,
)
from rllib_dapo.rewards.grading.gold import Gold, parse_gold
from rllib_dapo.rewards.grading.literals import TooLargeError, parse_counted
from rllib_dapo.rewards.grading.normalize import fraction_signs, normalize_robust
from rllib_dapo.rewards.grading.parser import parse_math
from rllib_dapo.rewards.grading.pool import PoolSettings, shared_pool
from rllib_dapo.rewards.grading.rational import NotRationalError, RationalArithmetic
from rllib_dapo.rewards.grading.recipe import normalize_strict
from rllib_dapo.rewards.grading.trees import Tree, UnreadableError, allowed
from rllib_dapo.rewards.grading.unfinished import as_finished

AUTO = "auto"
"""The name that leaves the choice of a grader to this package; it is `robust` at present."""

__all__ = [
    "AUTO",
    "GRADERS",
    "Gold",
    "Grader",
    "MatchedBy",
    "Verdict",
    "find_grader",
    "grade",
    "grade_all",
    "grade_robust",
    "grade_strict",
    "grader_name",
    "parse_gold",
]

MatchedBy = Literal["string", "value", "symbolic", "no_answer", "different", "refused", "timed_out"]
"""How a verdict came about.

A correct answer is equal to the ground truth as a `string`, by its `value` as a number, or as
another value (`symbolic`). A completion is wrong because `no_answer` was found, because the answer
is `different`, because it was `refused` as too long or too large to read, or because it
`timed_out`: comparing it exceeded the limits of time or memory."""

Grader = Literal["robust", "strict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of grading one completion.

    Attributes:
        correct: whether the answer is the ground truth.
        extracted: the answer found, for people to read; it is cut if it is very long.
        matched_by: see `MatchedBy`.
    """

    correct: bool
    extracted: str | None
    matched_by: MatchedBy


@dataclass(frozen=True, slots=True)
class _Open:
    """A comparison that the pool has to make: the answer found, and the two trees."""

    extracted: str
    pair: tuple[Tree, Tree]


def grade(
    answer_text: str, gold: object, grader: str = "robust", limits: PoolSettings | None = None
) -> Verdict:
    """Grade a whole completion against its ground truth.

    Args:
        answer_text: the whole completion, with its reasoning.
        gold: the ground truth: a text, a number, or a `Gold` that was read before.
        grader: `robust` or `strict`.
        limits: the limits of the pool of worker processes.

    Raises:
        DataError: the ground truth cannot be read.
        SettingError: there is no such grader.
        DAPOError: worker processes are needed and cannot be started.
    """
    return find_grader(grader, limits=limits)(answer_text, _read(gold))


def grade_all(
    answer_texts: Sequence[str],
    golds: Sequence[object],
    grader: str = "robust",
    limits: PoolSettings | None = None,
) -> list[Verdict]:
    """Grade many completions, each against its own ground truth, with all in flight at once.

    Args:
        answer_texts: the whole completions.
        golds: one ground truth for each completion.
        grader: `robust` or `strict`.
        limits: the limits of the pool of worker processes.

    Raises:
        ValueError: the number of ground truths is not the number of completions.
        DataError, SettingError, DAPOError: see `grade`.
    """
    pairs = list(zip(answer_texts, map(_read, golds), strict=True))
    one_by_one = find_grader(grader, limits=limits)
    if grader != "robust":
        return [one_by_one(text, gold) for text, gold in pairs]
    found = [_judge(text, gold) for text, gold in pairs]
    questions = [item.pair for item in found if isinstance(item, _Open)]
    outcomes = iter(shared_pool(limits).compare(questions) if questions else ())
    return [_answered(item, next(outcomes)) if isinstance(item, _Open) else item for item in found]


def grader_name(name: str, setting: str = "grader") -> str:
    """Return the name of the grader that a setting means: `auto` is `robust`.

    Raises:
        SettingError: there is no such grader.
    """
    meant = "robust" if name == AUTO else name
    find_grader(meant, setting)
    return meant


def find_grader(
    name: str, setting: str = "grader", limits: PoolSettings | None = None
) -> Callable[[str, Gold], Verdict]:
    """Return the grader called `name`.

    Args:
        name: `robust` or `strict`.
        setting: the name of the setting in an error message.
        limits: the limits of the pool of worker processes.

    Raises:
        SettingError: there is no such grader; the message suggests the nearest name.
    """
    if name not in GRADERS:
        near = difflib.get_close_matches(str(name), GRADERS, n=1, cutoff=0.0)
        raise SettingError(
            f"{setting}={name!r}: there is no such grader; use one of {', '.join(GRADERS)}"
            f" (did you mean {near[0]!r}?)",
            setting,
        )
    return partial(grade_robust, limits=limits) if name == "robust" else GRADERS[name]


def grade_strict(answer_text: str, gold: Gold) -> Verdict:
    """Grade a completion as the DAPO recipe does."""
    extracted = extract_strict(answer_text)
    if extracted is None:
        return Verdict(False, None, "no_answer")
    # The recipe's rule leaves nothing of `$$8$$`, which must not equal `$$9$$`.
    if gold.strict and normalize_strict(extracted) == gold.strict:
        return Verdict(True, extracted, "string")
    return Verdict(False, extracted, "different")


def grade_robust(answer_text: str, gold: Gold, limits: PoolSettings | None = None) -> Verdict:
    """Grade a completion whose answer is written as people write answers."""
    found = _judge(answer_text, gold)
    if isinstance(found, Verdict):
        return found
    return _answered(found, shared_pool(limits).compare([found.pair])[0])


def _answered(question: _Open, outcome: str) -> Verdict:
    matched_by: MatchedBy = {"same": "symbolic", "timed_out": "timed_out"}.get(outcome, "different")  # type: ignore[assignment]
    return Verdict(outcome == "same", question.extracted, matched_by)


def _judge(answer_text: str, gold: Gold) -> Verdict | _Open:
    extracted = extract_robust(answer_text, keep_name=gold.named)
    if extracted is None:
        return Verdict(False, None, "no_answer")
    if len(extracted) > MAX_ANSWER:
        return Verdict(False, extracted[:STRICT_WINDOW] + "…", "refused")
    try:
        matched_by = _compare(extracted, gold)
    except TooLargeError:
        matched_by = "refused"
    if isinstance(matched_by, tuple):
        return _Open(extracted, matched_by)
    return Verdict(matched_by in ("string", "value", "symbolic"), extracted, matched_by)


def _compare(extracted: str, gold: Gold) -> MatchedBy | tuple[Tree, Tree]:
    """Return how the comparison ends, or the two trees that a worker has to compare."""
    if extracted == gold.plain:
        return "string"
    if gold.choice and chosen(extracted) == gold.choice:
        return "string"
    if gold.number is not None:
        # A number is equal to a number only. A string comparison ignores spaces and would turn
        # the list "3 4" into 34.
        number = parse_counted(fraction_signs(extracted))
        return "value" if number is not None and number.equals_gold(gold.number) else "different"
    if normalize_robust(extracted, keep_name=gold.named) == gold.normal:
        return "string"
    return "different" if gold.tree is None else _compare_trees(extracted, gold.tree, gold.unit)


def _compare_trees(extracted: str, gold: Tree, gold_unit: str) -> MatchedBy | tuple[Tree, Tree]:
    try:
        tree, unit = parse_math(extracted)
    except UnreadableError:
        return "different"
    mixed_up = unit and gold_unit and unit != gold_unit
    answer, value = on_the_line(tree, gold), on_the_line(gold, tree)
    if _has_relations(value) and not _has_relations(answer):
        return "different"  # 3 or 4 does not say which is x in x = 3, y = 4.
    if mixed_up or not comparable(answer, value) or not allowed(answer, value):
        return "different"
    try:
        same = equal(answer, value, RationalArithmetic())
        return "symbolic" if same and as_finished(tree, gold) else "different"
    except NotRationalError:
        return (answer, value) if as_finished(tree, gold) else "different"


def _has_relations(tree: Tree) -> bool:
    return bool(tree[0] == "set") and any(item[0] == "rel" for item in tree[2])


def _read(gold: object) -> Gold:
    return gold if isinstance(gold, Gold) else parse_gold(gold)


GRADERS: Mapping[str, Callable[[str, Gold], Verdict]] = MappingProxyType(
    {"robust": grade_robust, "strict": grade_strict}
)
"""The graders by name."""
