"""The majority vote over the completions of one problem (cons@k)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from rllib_dapo.rewards.grading.extract import clean
from rllib_dapo.rewards.grading.literals import TooLargeError, parse_number
from rllib_dapo.rewards.grading.normalize import fraction_signs, normalize_robust
from rllib_dapo.types import Completion, Group

_LONGEST = 300
"""Answers with more characters are compared as they are."""


def majority_is_correct(group: Group) -> bool:
    """Return whether the answer that most completions of a group give is correct.

    Each completion has one vote, for the value of its answer. All correct completions vote for
    the same value. Wrong ones vote for the number in the `extracted` of the environment's info
    (`0.5` and `1/2` are one), or for its text without layout if it is no number. If the info has no
    `extracted`, they vote for the whole completion.

    A completion without an answer (`matched_by: no_answer`, or nothing extracted) has no vote: "no
    answer" never wins. Of answers with equally many votes, the one that was sampled first wins.
    Without any vote, as in a group that failed, the problem is not solved.
    """
    votes = Counter(vote for vote in map(_vote, group.completions) if vote is not None)
    return bool(votes) and votes.most_common(1)[0][0] is True


def _vote(completion: Completion) -> Hashable:
    """Return what a completion votes for: True if it is correct, None if it has no vote."""
    if completion.correct:
        return True
    info = completion.info
    if info.get("matched_by") == "no_answer":
        return None
    answer = info.get("extracted", completion.text)
    text = "" if answer is None else str(answer).strip()
    return _value(text) if text else None


def _value(text: str) -> Hashable:
    """Return a wrong answer's value: equal for answers that mean the same."""
    if len(text) > _LONGEST:
        return text
    try:
        number = parse_number(fraction_signs(clean(text)))
    except (TooLargeError, ZeroDivisionError):
        return text
    return (number.value, number.unit) if number is not None else normalize_robust(text) or text
