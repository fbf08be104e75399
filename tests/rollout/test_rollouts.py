"""Batches out of a stream of problems: whatever the timing, none is lost and none is doubled.

The runners are a stand-in that answers in an order of its own; what it answers depends on
the problem only.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, make_group

from rllib_dapo.errors import SamplingError
from rllib_dapo.rollout.rollouts import RolloutBatch, Rollouts
from rllib_dapo.settings.general import DAPOSettings
from rllib_dapo.types import Group, ProblemRef

pytestmark = pytest.mark.timeout(60)

MODES = ["finish", "abort", "continue"]


@dataclass(kw_only=True)
class Settings(DAPOSettings):
    """Batches of four groups of two."""

    group_size: int = 2
    groups_per_batch: int = 4


class Problems:
    """An endless stream."""

    def __init__(self) -> None:
        self.position = 0

    def take(self, count: int) -> list[ProblemRef]:
        self.position += count
        return [ProblemRef(p, p, p) for p in range(self.position - count, self.position)]

    def get_state(self) -> int:
        return self.position

    def set_state(self, state: int) -> None:
        self.position = state


class Pool:
    """Answers a few of the problems in flight per poll, in an order drawn from `timing`.

    Args:
        timing: None: all at once, in order.
        kept: 1 of so many groups is all right and carries no signal.
    """

    def __init__(self, timing: Random | None = None, kept: int = 3) -> None:
        self.weights_version = 0
        self.busy_s = 0.0
        self.runners = [1]
        self.answered: list[ProblemRef] = []
        self._open: list[ProblemRef] = []
        self._timing, self._kept = timing, kept

    @property
    def in_flight(self) -> int:
        return len(self._open)

    def ask(self, refs: Sequence[ProblemRef]) -> None:
        assert not set(refs) & set(self._open), "asked twice at once"
        self._open += refs

    def poll(self) -> list[Group]:
        ready = list(self._open)
        if self._timing is not None:
            ready = self._timing.sample(ready, self._timing.randint(0, min(3, len(ready))))
        self._open = [ref for ref in self._open if ref not in ready]
        self.answered += ready
        return [self._answer(ref) for ref in ready]

    def withdraw(self) -> tuple[list[Group], tuple[ProblemRef, ...]]:
        late, again = self.poll(), tuple(self._open)
        self._open = []
        return late, tuple(sorted(again, key=lambda ref: ref.position))

    def _answer(self, ref: ProblemRef) -> Group:
        scores = [1.0, 1.0] if Random(ref.position).randrange(self._kept) == 0 else [1.0, -1.0]
        group = make_group(ref.position, scores)
        return Group(ref, group.prompt, group.completions, self.weights_version)


def make(pool: Pool, **settings: Any) -> Rollouts:
    config = Settings()
    for name, value in settings.items():
        setattr(config, name, value)
    return Rollouts(config, pool, Problems())  # type: ignore[arg-type]


def silent(progress: Any) -> None:
    pass


def settled(rollouts: Rollouts) -> RolloutBatch:
    """The next batch and all that belongs to it."""
    batch = rollouts.sample(silent)
    finished = rollouts.finish(batch)
    assert finished.groups == batch.groups
    return finished


def sample(rollouts: Rollouts, pool: Pool, batches: int) -> list[RolloutBatch]:
    """Batches with an update after each of them."""
    sampled = []
    for _ in range(batches):
        sampled.append(settled(rollouts))
        pool.weights_version += 1
    return sampled


def trained_on(batches: list[RolloutBatch]) -> list[list[int]]:
    return [[group.ref.position for group in batch.groups] for batch in batches]


timings = st.integers(0, 10**6).map(Random)


@given(timing=timings, age=st.integers(0, 2), kept=st.integers(2, 5))
@examples(60)
def test_with_finish_the_timing_changes_nothing(timing, age, kept):
    calm, hasty = Pool(None, kept), Pool(timing, kept)
    runs = []
    for pool in (calm, hasty):
        rollouts = make(pool, max_staleness=age)
        batches = sample(rollouts, pool, 5)
        rest = [(b.counts, b.expired, b.surplus, b.keep_rate) for b in batches]
        left = [group.ref for group in rollouts.get_state()["buffer"]]
        runs.append((trained_on(batches), rest, left, rollouts.get_state()["problems"]))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("mode", MODES)
@given(timing=timings, age=st.integers(0, 2))
@examples(40)
def test_every_problem_is_trained_on_dropped_expired_or_in_hand(mode, timing, age):
    pool = Pool(timing)
    rollouts = make(pool, unfinished_groups=mode, max_staleness=age)
    batches = sample(rollouts, pool, 6)
    trained = [position for batch in trained_on(batches) for position in batch]
    assert max(Counter(trained).values()) == 1
    dropped = sum(batch.counts.get("all_correct", 0) for batch in batches)
    expired = sum(batch.expired for batch in batches)
    state = rollouts.get_state()
    in_hand = len(state["buffer"]) + len(state["again"])
    assert len(trained) + dropped + expired + in_hand == state["problems"]
    if mode != "abort":  # there a problem may be begun twice
        assert max(Counter(pool.answered).values()) == 1


@given(timing=timings, cut=st.integers(1, 4), age=st.integers(0, 2))
@examples(40)
def test_a_run_that_is_cut_and_goes_on_elsewhere_is_the_uninterrupted_one(timing, cut, age):
    pool = Pool()
    whole = trained_on(sample(make(pool, max_staleness=age), pool, 6))
    first, second = Pool(timing), Pool(timing)
    before = make(first, max_staleness=age)
    batches = sample(before, first, cut)
    after = make(second, max_staleness=age)
    after.set_state(pickle.loads(pickle.dumps(before.get_state())))  # noqa: S301 - our own
    second.weights_version = first.weights_version
    assert trained_on(batches + sample(after, second, 6 - cut)) == whole


@pytest.mark.parametrize("mode", ["abort", "continue"])
@given(timing=timings, cut=st.integers(1, 4))
@examples(30)
def test_what_is_in_flight_when_the_state_is_taken_is_asked_again(mode, timing, cut):
    first, second = Pool(timing), Pool(timing)
    before, after = (
        make(pool, unfinished_groups=mode, max_staleness=9) for pool in (first, second)
    )
    batches = sample(before, first, cut)
    state = before.get_state()
    after.set_state(state)
    second.weights_version = first.weights_version
    batches += sample(after, second, 4)
    assert {ref.position for ref in state["again"]} <= {ref.position for ref in second.answered} | {
        ref.position for ref in after.get_state()["again"]
    }
    trained = [position for batch in trained_on(batches) for position in batch]
    dropped = sum(batch.counts.get("all_correct", 0) for batch in batches)
    end = after.get_state()
    assert len(set(trained)) == len(trained)
    in_hand = len(end["buffer"]) + len(end["again"])
    assert len(trained) + dropped + in_hand == end["problems"]


def test_a_state_that_is_taken_back_withdraws_what_is_in_flight():
    pool = Pool(Random(3))
    rollouts = make(pool, unfinished_groups="continue")
    sample(rollouts, pool, 2)
    state = rollouts.get_state()
    sample(rollouts, pool, 2)
    assert pool.in_flight
    rollouts.set_state(state)
    assert pool.in_flight == 0
    assert rollouts.get_state()["problems"] == state["problems"]
    rollouts.sample(silent)  # asks for the state's problems, which the pool refuses twice


def test_an_evaluation_gets_its_own_groups_and_keeps_the_others_for_the_next_batch():
    pool = Pool(Random(1))
    rollouts = make(pool, unfinished_groups="continue")
    sample(rollouts, pool, 1)
    in_flight = {ref.position for ref in rollouts.get_state()["again"]}
    assert in_flight
    held_out = [ProblemRef(p, p, p, evaluation=True) for p in range(30)]
    groups = rollouts.answer(held_out)
    assert sorted(group.ref.position for group in groups) == list(range(30))
    assert all(group.ref.evaluation for group in groups)
    # A checkpoint made now asks for them again, finished or not.
    assert in_flight == {ref.position for ref in rollouts.get_state()["again"]}
    (batch,) = sample(rollouts, pool, 1)
    assert in_flight <= {g.ref.position for g in batch.sampled} | {
        ref.position for ref in rollouts.get_state()["again"]
    }
    training = [ref.position for ref in pool.answered if not ref.evaluation]
    assert max(Counter(training).values()) == 1


@pytest.mark.parametrize("age", [0, 1, 2])
def test_groups_are_used_as_long_as_they_are_fresh_and_no_longer(age):
    pool = Pool(Random(5))
    rollouts = make(pool, max_staleness=age, groups_per_batch=3)
    for version in range(40):
        (batch,) = sample(rollouts, pool, 1)
        assert all(version - group.weights_version <= age for group in batch.groups)


def test_a_batch_that_cannot_be_filled_says_so_and_a_later_one_may_still_be():
    pool = Pool(kept=1)  # every group is all right
    rollouts = make(pool, max_sampling_rounds=3)
    with pytest.raises(SamplingError, match="12 all_correct"):
        rollouts.sample(silent)
    pool._kept = 5
    assert len(rollouts.sample(silent).groups) == 4


@pytest.mark.parametrize("mode", MODES)
def test_nothing_piles_up_over_many_batches(mode):
    pool = Pool(Random(7))
    rollouts = make(pool, unfinished_groups=mode, max_staleness=1)
    for _ in range(300):
        sample(rollouts, pool, 1)
        state = rollouts.get_state()
        assert len(state["buffer"]) + len(state["again"]) + pool.in_flight < 40
