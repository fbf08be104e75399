"""Dynamic sampling: ask until N groups carry a signal (§3.2 and Eq. 11 of DAPO).

Control flow only, no Ray and no engine:

    sampler = DynamicSampler(wanted=512)
    while count := sampler.next_request():      # one round
        for group in sample(count):             # any order
            sampler.add(group)
    groups, surplus = sampler.result()

A batch is filled in the order of the problem stream, not in the order in which groups
finish: otherwise problems with short answers would be preferred. Therefore a round ends
when all of its groups are in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rllib_dapo.choices import AtLimit
from rllib_dapo.errors import SamplingError, SettingError
from rllib_dapo.types import Group

Verdict = Literal["kept", "all_correct", "all_wrong", "equal_scores", "failed"]
"""Why a group is kept or dropped; `equal_scores`: right and wrong answers have one score, or
other components make their rewards equal."""

# A round never assumes that less than one group in 20 is kept, nor asks for more than 4
# batches at once: without a first kept group the observed rate is 0, and 1/0 is no request.
_LOWEST_KEEP_RATE = 0.05
_LARGEST_REQUEST = 4

_REMEDIES: dict[str, str] = {
    "all_wrong": "the problems are too hard for this model: take easier ones or a larger group",
    "all_correct": "the problems are too easy for this model: take harder ones",
    "equal_scores": "right and wrong answers get one reward: mend the environment's, or lower the "
    "weights of the reward functions",
    "failed": "the environment or a reward function could not score the groups: mend it",
}


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
    return "equal_scores" if any(correct) else "all_wrong"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a batch is, for progress bars and metrics.

    Attributes:
        kept: groups kept so far (can exceed `wanted`).
        wanted: groups of a full batch, N.
        dropped: groups dropped so far, by verdict.
        carried: groups among the kept that came over from the previous batch.
        samples: groups sampled so far, kept or dropped; the carried ones are not in it.
        rounds: rounds begun.
        max_rounds: rounds allowed.
    """

    kept: int
    wanted: int
    dropped: dict[str, int]
    carried: int
    samples: int
    rounds: int
    max_rounds: int


class DynamicSampler:
    """The bookkeeping of one batch of groups; see the module for the loop around it.

    Args:
        wanted: N, groups of a full batch.
        enabled: False keeps groups without signal too, so that one round of exactly N
            groups is enough. Failed groups are replaced in either case.
        max_rounds: how many rounds may be asked for.
        at_limit: what `result` does when they did not suffice: `error` raises,
            `train_on_partial` hands out the groups there are, `skip` hands out none.
        keep_rate: share of groups that the previous batch kept (`keep_rate` of its
            sampler); the first round asks for N / keep_rate. None: for N.
    """

    def __init__(
        self,
        wanted: int,
        *,
        enabled: bool = True,
        max_rounds: int = 10,
        at_limit: AtLimit = "error",
        keep_rate: float | None = None,
    ) -> None:
        _check(wanted, max_rounds, at_limit)
        self.wanted = wanted
        self.enabled = enabled
        self.max_rounds = max_rounds
        self.at_limit = at_limit
        self.rounds = 0
        self.duplicates = 0
        self._previous_keep_rate = 1.0 if keep_rate is None else keep_rate
        self._outstanding = 0
        self._carried = 0
        self._counts: Counter[str] = Counter()
        self._verdicts: dict[int, Verdict] = {}
        self._kept: dict[int, Group] = {}
        self._last_failure: str | None = None

    @property
    def samples(self) -> int:
        """Groups sampled so far, kept or dropped; carried ones were sampled before."""
        return self._counts.total()

    @property
    def counts(self) -> dict[str, int]:
        """Groups by verdict; when not enabled, verdicts are counted without dropping."""
        return dict(self._counts)

    @property
    def full(self) -> bool:
        """True when N groups are kept and the round is complete."""
        return len(self._kept) >= self.wanted and self._outstanding == 0

    @property
    def keep_rate(self) -> float | None:
        """Share of the sampled groups that was kept, for the next batch's sampler."""
        return (len(self._kept) - self._carried) / self.samples if self.samples else None

    @property
    def progress(self) -> Progress:
        """A snapshot."""
        return Progress(
            kept=len(self._kept),
            wanted=self.wanted,
            dropped=self._dropped(),
            carried=self._carried,
            samples=self.samples,
            rounds=self.rounds,
            max_rounds=self.max_rounds,
        )

    def next_request(self) -> int:
        """Begin a round: how many further problems to ask for; 0 when there is no more.

        As many as should fill the batch at the keep rate seen so far: ⌈missing / rate⌉.

        Raises:
            SamplingError: groups of the last round are still missing.
        """
        if self._outstanding:
            raise SamplingError(
                f"round {self.rounds} of dynamic sampling is not over: {self._outstanding} of its "
                "groups were never added; add every group, a lost one with its `failure` set"
            )
        if self.full or self.rounds >= self.max_rounds:
            return 0
        missing = self.wanted - len(self._kept)
        if self.enabled:
            observed = self.keep_rate if self.keep_rate is not None else self._previous_keep_rate
            needed = math.ceil(missing / max(observed, _LOWEST_KEEP_RATE))
            missing = min(needed, _LARGEST_REQUEST * self.wanted)
        self.rounds += 1
        self._outstanding = missing
        return missing

    def carry_over(self, groups: Iterable[Group]) -> None:
        """Take in the previous batch's surplus. Its verdicts were counted there."""
        for group in groups:
            self._verdicts[group.ref.position] = "kept"
            self._kept[group.ref.position] = group
        self._carried = len(self._kept)

    def add(self, group: Group) -> Verdict:
        """Take in one group of the round and say what becomes of it.

        A second answer to one position is ignored and counted in `duplicates`: a problem
        asked again because its runner seemed dead may come back twice. Only a failed
        group may be followed by another try at its position.
        """
        position = group.ref.position
        if self._verdicts.get(position, "failed") != "failed":
            self.duplicates += 1
            return self._verdicts[position]
        verdict = classify(group)
        self._verdicts[position] = verdict
        self._counts[verdict] += 1
        self._outstanding = max(0, self._outstanding - 1)
        if verdict == "failed":
            self._last_failure = group.failure or self._last_failure
        elif verdict == "kept" or not self.enabled:
            self._kept[position] = group
        return verdict

    def result(self) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
        """The batch, and the kept groups that are not in it, both in problem order.

        Raises:
            SamplingError: the batch is not full, and `at_limit` is `error`.
        """
        groups = tuple(self._kept[position] for position in sorted(self._kept))
        if len(groups) >= self.wanted:
            return groups[: self.wanted], groups[self.wanted :]
        if self.at_limit == "error":
            raise SamplingError(self._explain())
        return (groups, ()) if self.at_limit == "train_on_partial" else ((), groups)

    def _dropped(self) -> dict[str, int]:
        """Counts of what was really dropped."""
        if not self.enabled:
            return {"failed": self._counts["failed"]}
        return {verdict: self._counts[verdict] for verdict in _REMEDIES}

    def _explain(self) -> str:
        """Counts by reason, the remedy for the commonest, and the settings to change."""
        dropped = self._dropped()
        reasons = ", ".join(f"{count} {verdict}" for verdict, count in dropped.items())
        commonest = max(dropped, key=lambda verdict: dropped[verdict])
        remedy = f" Mostly {commonest}: {_REMEDIES[commonest]}." if dropped[commonest] else ""
        failure = f" Last failure: {self._last_failure}." if self._last_failure else ""
        return (
            f"dynamic sampling kept {len(self._kept)} of {self.wanted} groups in {self.rounds} "
            f"rounds (max_sampling_rounds={self.max_rounds}); of {self.samples} groups sampled it "
            f"dropped {reasons}.{remedy}{failure} Or raise max_sampling_rounds, lower "
            "groups_per_batch, or set at_sampling_limit to 'train_on_partial' or 'skip'."
        )


def _check(wanted: int, max_rounds: int, at_limit: str) -> None:
    """Refuse a sampler that could never fill a batch."""
    if wanted < 1:
        raise SettingError(
            f"groups_per_batch={wanted}: a batch needs at least 1 group", "groups_per_batch"
        )
    if max_rounds < 1:
        raise SettingError(
            f"max_sampling_rounds={max_rounds}: at least 1 round is needed to sample anything",
            "max_sampling_rounds",
        )
    if at_limit not in ("error", "train_on_partial", "skip"):
        raise SettingError(
            f"at_sampling_limit={at_limit!r} is unknown: use 'error', 'train_on_partial' or 'skip'",
            "at_sampling_limit",
        )
