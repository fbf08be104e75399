"""Batches of groups, one after the other, out of a stream of problems.

    problems ─> DynamicSampler ─ask─> RunnerPool ─groups─> DynamicSampler ─> batch
       ^                                                        │
       └── to request again (abort), in flight (continue) <────┴──> buffer for the next batch

The sampler says how many problems to request, and the pool has runners sample their completions.
No problem is lost: its group ends in a batch, in the buffer or in the counts of dropped groups, or
the problem is requested again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllib_dapo.rollout.demand import KeepRate
from rllib_dapo.rollout.dynamic_sampling import DynamicSampler
from rllib_dapo.rollout.group_buffer import GroupBuffer
from rllib_dapo.rollout.group_filter import BatchProgress
from rllib_dapo.rollout.problem_source import ProblemSource
from rllib_dapo.rollout.runner_pool import RunnerPool
from rllib_dapo.settings.run import RunSettings
from rllib_dapo.types import Group, ProblemRef

# Standard deviations of safety in what a batch requests. A batch that is short of a single
# group waits for one whole completion more; surplus groups are buffered and come first in the
# next batch, but are staler there.
_MARGIN = 1.0


@dataclass(frozen=True)
class RolloutBatch:
    """What was sampled for one iteration.

    Attributes:
        groups: the groups to train on; none where the batch is skipped.
        sampled: all groups that came back for it, kept or dropped.
        counts: the number of these by verdict (`DynamicSampler.counts`).
        progress: how the batch was filled.
        expired: groups of the buffer that were too stale for it.
        surplus: the number of kept groups that are not in the batch and went into the buffer.
        keep_rate: estimated share of groups that are kept.
        seconds: how long sampling took.
        busy_share: share of that time in which the engines computed, mean over the runners.
    """

    groups: tuple[Group, ...]
    sampled: tuple[Group, ...]
    counts: dict[str, int]
    progress: BatchProgress
    expired: int
    surplus: int
    keep_rate: float
    seconds: float
    busy_share: float


@dataclass
class FilledBatch:
    """A batch that can be trained on, while other problems requested for it may be in flight.

    Attributes: see `RolloutBatch`.
    """

    sampler: DynamicSampler
    sampled: list[Group] = field(default_factory=list)
    groups: tuple[Group, ...] = ()
    seconds: float = 0.0
    busy_share: float = 0.0

    def add(self, groups: Sequence[Group]) -> None:
        """Take in groups that have arrived."""
        self.sampled += [group for group in groups if self.sampler.add(group) is not None]


class Rollouts:
    """Samples the batches of training and the groups of evaluation.

    Args:
        config: the settings that say how many groups a batch has, and what happens to problems in
            flight and to surplus groups.
        pool: the runners.
        problems: the stream of problems.
    """

    def __init__(self, config: RunSettings, pool: RunnerPool, problems: ProblemSource) -> None:
        self._config = config
        self._pool = pool
        self._problems = problems
        self._keep_rate = KeepRate(config.groups_per_batch)
        self._buffer = GroupBuffer(config.max_staleness)
        self._withdrawn: tuple[ProblemRef, ...] = ()  # requested again first (`abort`)
        self._in_flight: tuple[ProblemRef, ...] = ()  # left to the next batch (`continue`)
        self._arrived: list[Group] = []  # groups of `_in_flight` that came during an evaluation

    # -- One batch ------------------------------------------------------------------------

    def sample(self, show: Callable[[BatchProgress], None]) -> FilledBatch:
        """Sample until a batch is full.

        With `unfinished_groups: finish` the runners may go on with what is in flight; `finish`
        waits for it.

        Args:
            show: called with the progress while the batch fills.

        Raises:
            SamplingError: the batch cannot be filled and `at_sampling_limit` is `error`.
            EngineError: no runner is left.
        """
        started, busy = time.perf_counter(), self._pool.busy_s
        batch = self._start_batch()
        show(batch.sampler.progress)  # before the first group is done
        while not batch.sampler.done:
            if count := batch.sampler.demand:
                refs = self._problems.take(count)
                batch.sampler.expect(refs)
                self._pool.ask(refs)
            batch.add(self._pool.poll())
            show(batch.sampler.progress)
        if self._config.unfinished_groups == "continue":
            self._in_flight = batch.sampler.in_flight
        elif self._config.unfinished_groups == "abort":
            groups, self._withdrawn = self._pool.withdraw()
            batch.add(groups)
        batch.groups, _ = batch.sampler.result()
        self._keep_rate.learn(*batch.sampler.observed)
        batch.seconds = time.perf_counter() - started
        runners = max(1, len(self._pool.runners))
        busy = (self._pool.busy_s - busy) / max(batch.seconds, 1e-9) / runners
        batch.busy_share = min(1.0, busy)
        return batch

    def wait_for_in_flight(self, batch: FilledBatch) -> None:
        """Wait for the problems in flight that must be completed with the present weights."""
        started = time.perf_counter()
        while self._config.unfinished_groups == "finish" and batch.sampler.in_flight:
            batch.add(self._pool.poll())
        batch.seconds += time.perf_counter() - started

    def finish(self, batch: FilledBatch) -> RolloutBatch:
        """Close a batch: wait for what is in flight, and put surplus groups into the buffer.

        Call this once per batch, before the weights change.
        """
        self.wait_for_in_flight(batch)
        sampler = batch.sampler
        surplus = sampler.surplus()
        self._buffer.put(surplus)
        return RolloutBatch(
            groups=batch.groups,
            sampled=tuple(batch.sampled),
            counts=sampler.counts,
            progress=sampler.progress,
            expired=self._buffer.expired,
            surplus=len(surplus),
            keep_rate=self._keep_rate.rate(),
            seconds=batch.seconds,
            busy_share=batch.busy_share,
        )

    def _start_batch(self) -> FilledBatch:
        """Begin a batch with what there is: buffered groups, and problems requested before."""
        config = self._config
        sampler = DynamicSampler(
            config.groups_per_batch,
            max_problems=config.max_sampling_rounds * config.groups_per_batch,
            enabled=config.dynamic_sampling,
            at_limit=config.at_sampling_limit,
            keep_rate=self._keep_rate,
            order="completion" if config.unfinished_groups == "continue" else "problem",
            margin=_MARGIN if config.max_staleness else 0.0,
        )
        sampler.carry_over(self._buffer.take(self._pool.weights_version))
        sampler.expect(self._in_flight, earlier=True)
        sampler.expect(self._withdrawn, earlier=True)
        self._pool.ask(self._withdrawn)
        self._in_flight = self._withdrawn = ()
        batch = FilledBatch(sampler)
        batch.add(self._arrived)
        self._arrived = []
        return batch

    # -- Evaluation -----------------------------------------------------------------------

    def answer(self, refs: Sequence[ProblemRef]) -> list[Group]:
        """Sample and score completions of evaluation problems; these count for no batch."""
        self._pool.ask(refs)
        missing, groups = set(refs), []
        while missing:
            for group in self._pool.poll():
                if group.ref in missing:
                    missing.discard(group.ref)
                    groups.append(group)
                else:
                    self._arrived.append(group)
        return groups

    # -- State ----------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the place in the stream, the buffer, and the problems to request again."""
        again = {ref.position: ref for ref in (*self._withdrawn, *self._in_flight)}
        return {
            "problems": self._problems.get_state(),
            "keep_rate": self._keep_rate.get_state(),
            "buffer": self._buffer.get_state(),
            "again": tuple(again[position] for position in sorted(again)),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            SettingError: the state belongs to another data set, mixture or seed.
        """
        self._problems.set_state(state["problems"])
        if self._pool.in_flight:
            self._pool.withdraw()
        self._keep_rate.set_state(state["keep_rate"])
        self._buffer.set_state(state["buffer"])
        self._withdrawn, self._in_flight, self._arrived = state["again"], (), []
