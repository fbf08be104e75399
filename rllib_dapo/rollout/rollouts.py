"""Batches of groups, one after the other, out of a stream of problems.

    problems ─> DynamicSampler ─ask─> RunnerPool ─groups─> DynamicSampler ─> batch
       ^                                                        │
       └── asked again (abort), still in flight (continue) <────┴──> left over for the next

The sampler says how many problems to ask for, the pool has them answered, and no problem is
lost in between: it ends in a batch, in the leftovers, in the counts of what was dropped, or
it is asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllib_dapo.errors import SamplingError
from rllib_dapo.rollout.batch_progress import Progress
from rllib_dapo.rollout.demand import KeepRate
from rllib_dapo.rollout.dynamic_sampling import DynamicSampler
from rllib_dapo.rollout.leftovers import Leftovers
from rllib_dapo.rollout.problem_source import ProblemSource
from rllib_dapo.rollout.runner_pool import RunnerPool
from rllib_dapo.settings.run import RunSettings
from rllib_dapo.types import Group, ProblemRef

# Standard deviations of safety in what a batch asks for. One that is short of a single group
# waits for a whole answer more; a surplus comes first in the next batch, but is older there.
_MARGIN = 1.0


@dataclass(frozen=True)
class RolloutBatch:
    """What was sampled for one iteration.

    Attributes:
        groups: to be trained on; none where the batch is skipped.
        sampled: all groups that came back for it, kept or dropped.
        counts: of them, by verdict (`DynamicSampler.counts`).
        progress: how it went.
        expired: groups left over before that were too old by now.
        surplus: kept groups that are not in the batch.
        keep_rate: estimated share of groups that are kept.
        seconds: how long it took.
        busy_share: share of that time that the engines computed, mean over the runners.
    """

    groups: tuple[Group, ...]
    sampled: tuple[Group, ...]
    counts: dict[str, int]
    progress: Progress
    expired: int
    surplus: int
    keep_rate: float
    seconds: float
    busy_share: float


@dataclass
class _OpenBatch:
    """A batch that is full, while groups may still arrive that were asked for it.

    Attributes: see `RolloutBatch`.
    """

    sampler: DynamicSampler
    sampled: list[Group] = field(default_factory=list)
    groups: tuple[Group, ...] = ()
    seconds: float = 0.0
    busy_share: float = 0.0

    def add(self, groups: Sequence[Group]) -> None:
        """Take in what has arrived."""
        self.sampled += [group for group in groups if self.sampler.add(group) is not None]


class Rollouts:
    """Samples batches, and answers to evaluation problems.

    Args:
        config: how many groups, and what to do with what is left over.
        pool: the runners.
        problems: the stream.
    """

    def __init__(self, config: RunSettings, pool: RunnerPool, problems: ProblemSource) -> None:
        self._config = config
        self._pool = pool
        self._problems = problems
        self._keep_rate = KeepRate(config.groups_per_batch)
        self._leftovers = Leftovers(config.max_staleness)
        self._again: tuple[ProblemRef, ...] = ()
        self._in_flight: tuple[ProblemRef, ...] = ()
        self._early: list[Group] = []  # of those in flight, finished during an evaluation
        self._open: _OpenBatch | None = None
        self._taken: RolloutBatch | None = None
        self._ahead: RolloutBatch | None = None

    def next_batch(self, show: Callable[[Progress], None]) -> tuple[Group, ...]:
        """The groups to train on: of the batch that was sampled ahead, or else of a new one.

        With `unfinished_groups: finish` runners may go on with what is left until `settle`.

        Raises:
            SamplingError: it cannot be filled and `at_sampling_limit` is `error`.
            EngineError: no runner is left.
        """
        if self._ahead is None:
            self._taken, self._open = None, self._sample(show)
            return self._open.groups
        self._taken, self._ahead = self._ahead, None
        return self._taken.groups

    def sample_ahead(self, show: Callable[[Progress], None]) -> None:
        """Sample the batch that `next_batch` will return."""
        self.settle()
        self._open = self._sample(show)

    def settle(self) -> None:
        """Wait for what is still answered with the weights that are about to change."""
        if self._open is None:
            return
        batch, self._open = self._finished(self._open), None
        if self._taken is None:
            self._taken = batch
        else:
            self._ahead = batch

    @property
    def taken(self) -> RolloutBatch:
        """The batch of the last `next_batch`, once it is settled."""
        if self._taken is None:
            raise SamplingError("no batch was taken and settled")
        return self._taken

    def answer(self, refs: Sequence[ProblemRef]) -> list[Group]:
        """Have problems answered that no batch waits for, those of an evaluation."""
        self._pool.ask(refs)
        missing, groups = set(refs), []
        while missing:
            for group in self._pool.poll():
                if group.ref in missing:
                    missing.discard(group.ref)
                    groups.append(group)
                else:
                    self._early.append(group)
        return groups

    # -- One batch ------------------------------------------------------------------------

    def _sample(self, show: Callable[[Progress], None]) -> _OpenBatch:
        """Sample until the batch is full."""
        started, busy = time.perf_counter(), self._pool.busy_s
        batch = _OpenBatch(self._make_sampler())
        batch.add(self._early)
        self._early = []
        show(batch.sampler.progress)  # before the first group is done
        while not batch.sampler.done:
            if count := batch.sampler.demand():
                refs = self._problems.take(count)
                batch.sampler.expect(refs)
                self._pool.ask(refs)
            batch.add(self._pool.poll())
            show(batch.sampler.progress)
        if self._config.unfinished_groups == "continue":
            self._in_flight = batch.sampler.in_flight
        elif self._config.unfinished_groups == "abort":
            groups, self._again = self._pool.withdraw()
            batch.add(groups)
        batch.groups, _ = batch.sampler.result()
        self._keep_rate.learn(*batch.sampler.observed)
        batch.seconds = time.perf_counter() - started
        runners = max(1, len(self._pool.runners))
        busy = (self._pool.busy_s - busy) / max(batch.seconds, 1e-9) / runners
        batch.busy_share = min(1.0, busy)
        return batch

    def _finished(self, batch: _OpenBatch) -> RolloutBatch:
        """A batch when all is in that belongs to it."""
        started, sampler = time.perf_counter(), batch.sampler
        while self._config.unfinished_groups == "finish" and sampler.in_flight:
            batch.add(self._pool.poll())
        surplus = sampler.surplus()
        self._leftovers.put(surplus)
        return RolloutBatch(
            groups=batch.groups,
            sampled=tuple(batch.sampled),
            counts=sampler.counts,
            progress=sampler.progress,
            expired=self._leftovers.expired,
            surplus=len(surplus),
            keep_rate=self._keep_rate.rate(),
            seconds=batch.seconds + time.perf_counter() - started,
            busy_share=batch.busy_share,
        )

    def _make_sampler(self) -> DynamicSampler:
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
        sampler.carry_over(self._leftovers.take(self._pool.weights_version))
        sampler.expect(self._in_flight, earlier=True)
        sampler.expect(self._again, earlier=True)
        self._pool.ask(self._again)
        self._in_flight = self._again = ()
        return sampler

    # -- State ----------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Where the stream is, and what is in hand; answers in flight are asked for again."""
        again = {ref.position: ref for ref in (*self._again, *self._in_flight)}
        return {
            "problems": self._problems.get_state(),
            "keep_rate": self._keep_rate.get_state(),
            "leftovers": self._leftovers.get_state(),
            "again": tuple(again[position] for position in sorted(again)),
            "ahead": self._ahead,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken.

        Raises:
            SettingError: the state is of another data set, mixture or seed.
        """
        self._problems.set_state(state["problems"])
        if self._pool.in_flight:
            self._pool.withdraw()
        self._keep_rate.set_state(state["keep_rate"])
        self._leftovers.set_state(state["leftovers"])
        self._again, self._ahead = state["again"], state["ahead"]
        self._in_flight, self._early = (), []
        self._open = self._taken = None
