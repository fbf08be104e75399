"""The group filter of dynamic sampling (Eq. 11 of DAPO): which groups carry a signal.

A group whose completions are all correct, or all wrong, has zero advantages everywhere and
would only shrink the batch. The filter names the reason for each group it drops, so that a
batch that cannot be filled can say what to change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rllib_dapo.types import Group

GroupVerdict = Literal[
    "kept", "all_wrong", "all_correct", "equal_scores", "truncated", "ungraded", "failed"
]
"""Why a group is kept or dropped. `equal_scores`: correct and wrong completions have one score,
or other components make their rewards equal. `truncated`: none is correct, and every completion
was cut at the length limit. `ungraded`: none is correct, and grading took too long for at least
half of them."""

REMEDIES: dict[GroupVerdict, str] = {
    "all_wrong": "the problems are too hard for this model: take easier ones or a larger group",
    "all_correct": "the problems are too easy for this model: take harder ones",
    "equal_scores": "correct and wrong completions get one reward: change the environment's "
    "rewards, or lower the weights of the reward functions",
    "truncated": "every completion was cut before it ended: raise max_completion_length",
    "ungraded": "the grader took too long: give it more CPU time, or raise its time limit",
    "failed": "the environment or a reward function could not score the groups: correct it",
}
"""Every reason for which a group is dropped, and what to do about it."""


def classify(group: Group) -> GroupVerdict:
    """Decide whether a group carries a signal, by the environment's scores before any shaping.

    The completions must differ in score, compared exactly: the standard deviation of equal
    numbers need not be 0 in floating point. If there is one score for correct completions and
    one for wrong ones, this is the condition 0 < #correct < G of Eq. 11, whatever the two
    scores are. Other components of the reward make no signal out of equal scores, however much
    they differ; but if they cancel different scores, so that all rewards are equal, there is
    nothing to train on.

    A group has `failed` if it has a `failure`, no completions, an aborted one, or a reward that
    is missing, NaN or infinite: one bad reward makes the others incomparable.
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
    return "equal_scores" if any(correct) else _why_none_is_correct(group)


def _why_none_is_correct(group: Group) -> GroupVerdict:
    """Tell a model that is wrong from a limit of length or of grading time that is too low."""
    if all(c.truncated for c in group.completions):
        return "truncated"
    late = sum(c.info.get("matched_by") == "timed_out" for c in group.completions)
    return "ungraded" if 2 * late >= len(group.completions) else "all_wrong"


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How far a batch is filled, for progress bars, metrics and messages.

    Attributes:
        kept: groups kept so far, those from the buffer included; it can exceed `wanted`.
        wanted: N, groups of a full batch.
        dropped: groups dropped so far, by verdict.
        carried: groups among the kept ones that came from the buffer.
        asked: problems newly requested for this batch.
        resolved: groups that came back, kept or dropped, without those from the buffer.
        in_flight: problems that were requested, for this batch or before, and are not resolved.
        limit: the largest number of problems that may be requested.
    """

    kept: int
    wanted: int
    dropped: dict[str, int]
    carried: int
    asked: int
    resolved: int
    in_flight: int
    limit: int


def shortfall(progress: BatchProgress, last_failure: str | None) -> str:
    """Say why a batch is not full: counts by reason, the commonest one's remedy, the settings.

    Args:
        progress: the state of a batch that has reached its limit.
        last_failure: how the last failed group failed; None if no group has.
    """
    dropped = progress.dropped
    reasons = ", ".join(f"{count} {verdict}" for verdict, count in dropped.items() if count)
    commonest = max(REMEDIES, key=lambda verdict: dropped.get(verdict, 0))
    remedy = f" Mostly {commonest}: {REMEDIES[commonest]}." if reasons else ""
    failure = f" The last failure was: {last_failure}." if last_failure else ""
    rounds = progress.limit / progress.wanted
    return (
        f"dynamic sampling kept {progress.kept} of {progress.wanted} groups and has requested "
        f"{progress.asked} problems, all that max_sampling_rounds={rounds:g} allows "
        f"(times groups_per_batch={progress.wanted}); of {progress.resolved} groups sampled it "
        f"dropped {reasons or 'none'}.{remedy}{failure} Or raise max_sampling_rounds, lower "
        "groups_per_batch, or set at_sampling_limit to 'train_on_partial' or 'skip'."
    )
