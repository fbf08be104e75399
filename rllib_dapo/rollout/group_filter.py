"""The verdict on one group: whether it carries a signal, and if not, why (Eq. 11 of DAPO)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from rllib_dapo.types import Group

Verdict = Literal[
    "kept", "all_wrong", "all_correct", "equal_scores", "truncated", "ungraded", "failed"
]
"""Why a group is kept or dropped. `equal_scores`: right and wrong answers have one score, or
other components make their rewards equal. `truncated`: none is right and every answer was cut at
the length limit. `ungraded`: none is right, but grading took too long for half of them or more."""

REMEDIES: dict[Verdict, str] = {
    "all_wrong": "the problems are too hard for this model: take easier ones or a larger group",
    "all_correct": "the problems are too easy for this model: take harder ones",
    "equal_scores": "right and wrong answers get one reward: mend the environment's, or lower the "
    "weights of the reward functions",
    "truncated": "every answer was cut before it ended: raise max_completion_length",
    "ungraded": "the grader took too long: give it more CPU time, or raise its time limit",
    "failed": "the environment or a reward function could not score the groups: mend it",
}
"""Every reason for which a group is dropped, and what to do about it."""


def classify(group: Group) -> Verdict:
    """Whether a group carries a signal, by the environment's scores, *before* any shaping.

    Its answers must differ in score, compared exactly: a standard deviation of equal
    numbers need not be 0 in floating point. With one score for right and one for wrong
    answers this is Eq. 11's 0 < #correct < G, whatever the two scores are. However much
    other components of the reward differ, they make no signal of equal scores; but where
    they cancel different ones, so that the rewards are equal, there is none to train on.

    `failed`: the group has a `failure`, no answers, an aborted one, or a reward that is
    missing, NaN or infinite; one bad reward makes the other answers incomparable.
    """
    scores, rewards = group.scores, group.rewards
    aborted = any(c.finish_reason == "abort" for c in group.completions)
    if group.failure is not None or aborted or not len(scores) or not np.isfinite(rewards).all():
        return "failed"
    if scores.max() != scores.min():
        return "kept" if rewards.max() != rewards.min() else "equal_scores"
    correct = [c.correct for c in group.completions]
    if all(correct):
        return "all_correct"
    return "equal_scores" if any(correct) else _why_none_is_right(group)


def _why_none_is_right(group: Group) -> Verdict:
    """The model's fault, or that of a limit of length or time."""
    if all(c.truncated for c in group.completions):
        return "truncated"
    late = sum(c.info.get("matched_by") == "timed_out" for c in group.completions)
    return "ungraded" if 2 * late >= len(group.completions) else "all_wrong"
