"""Groups with a signal a second: streaming against sampling in rounds.

    streaming           the driver's loop as it is by default: what is left over is used next
    streaming, partial  `unfinished_groups: continue`: the first groups to finish are taken,
                        the others go on in the next batch
    rounds of N         ask for N problems and wait for all, again until N groups are kept, throw
                        the rest away (the published recipe's way, one batch a round)
    rounds to fit       the same, asking for the missing groups over the keep rate of before

All variants use the same runners, engines and environment and take turns.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from rollout_batches import settled_batch

from rllib_dapo.rollout.group_filter import classify
from rllib_dapo.rollout.problem_source import ProblemSource
from rllib_dapo.rollout.rollouts import Rollouts
from rllib_dapo.rollout.runner_pool import RunnerPool
from rllib_dapo.types import Group

VARIANTS = ("streaming", "streaming, partial", "rounds of N", "rounds to fit")
_LOWEST_RATE = 0.05


class Rounds:
    """Sampling in rounds that throws away what a batch does not need.

    Args:
        config: how many groups of how many answers.
        pool: the runners.
        to_fit: ask for missing groups over the keep rate instead of a whole batch.
    """

    def __init__(self, config: Any, pool: RunnerPool, *, to_fit: bool) -> None:
        self._wanted = config.groups_per_batch
        self._pool = pool
        self._problems = ProblemSource(config)
        self._to_fit = to_fit
        self._rate = 1.0

    def next_batch(self) -> int:
        """Sample one batch; returns the number of groups sampled for it."""
        kept = sampled = 0
        while kept < self._wanted:
            missing = self._wanted - kept
            needed = math.ceil(missing / max(self._rate, _LOWEST_RATE))
            groups = self._answer(needed if self._to_fit else self._wanted)
            sampled += len(groups)
            kept += sum(classify(group) == "kept" for group in groups)
        self._rate = kept / sampled
        return sampled

    def _answer(self, count: int) -> list[Group]:
        self._pool.ask(self._problems.take(count))
        groups: list[Group] = []
        while self._pool.in_flight:
            groups += self._pool.poll()
        return groups


def make_sampler(name: str, config: Any, pool: RunnerPool) -> Callable[[], int]:
    """A function that samples one batch and returns how many groups were sampled for it."""
    if name.startswith("rounds"):
        return Rounds(config, pool, to_fit=name == "rounds to fit").next_batch
    partial = name.endswith("partial")
    config = config.copy(copy_frozen=False).training(
        unfinished_groups="continue" if partial else "finish"
    )
    rollouts = Rollouts(config, pool, ProblemSource(config))
    return lambda: len(settled_batch(rollouts).sampled)


def measure(
    config: Any,
    make_pool: Callable[[], RunnerPool],
    set_rate: Callable[[float], None],
    *,
    clock: Callable[[], float] = time.perf_counter,
    rates: Mapping[float, int] = MappingProxyType({0.9: 4, 0.5: 4, 0.1: 2}),
    repeats: int = 3,
) -> dict[str, Any]:
    """Useful groups a second of each variant, in turns, at each keep rate.

    A variant's first batch at a rate is not counted: the estimate of the rate settles, and
    what is left over from it is used in the counted ones as it is at any later time.

    Args:
        config: the algorithm's; the environment is `SignalRateEnv`.
        make_pool: the runners anew, without anything in flight.
        set_rate: sets the environments' rate.
        clock: seconds so far, real or virtual.
        rates: shares of problems whose groups carry a signal, and batches of one turn.
        repeats: turns.
    """
    results = {}
    for rate, batches in rates.items():
        set_rate(rate)
        per_s: dict[str, list[float]] = {name: [] for name in VARIANTS}
        sampled: dict[str, list[float]] = {name: [] for name in VARIANTS}
        for repeat, name in itertools.product(range(repeats), VARIANTS):
            pool = make_pool()
            seeded = config.copy(copy_frozen=False).debugging(seed=repeat)
            sample = make_sampler(name, seeded, pool)
            sample()
            started = clock()
            counts = [sample() for _ in range(batches)]
            seconds = clock() - started
            pool.withdraw()
            per_s[name].append(batches * config.groups_per_batch / seconds)
            sampled[name].append(sum(counts) / batches)
            print(f"rate {rate}, {name}: {per_s[name][-1]:.2f} groups/s, {counts}", flush=True)
        results[str(rate)] = {"groups_per_s": per_s, "sampled_per_batch": sampled}
    return {
        "groups_per_batch": config.groups_per_batch,
        "group_size": config.group_size,
        "batches_per_turn": {str(rate): batches for rate, batches in rates.items()},
        "rates": results,
    }
