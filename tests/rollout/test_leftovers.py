"""Groups that no batch used yet."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling_loops import MIXED, WRONG, ask, positions, sample
from strategies import examples, make_group

from rllib_dapo.errors import SettingError
from rllib_dapo.rollout.demand import KeepRate
from rllib_dapo.rollout.dynamic_sampling import DynamicSampler
from rllib_dapo.rollout.leftovers import Leftovers
from rllib_dapo.types import Group


def sampled_by(version: int, *at: int) -> list[Group]:
    return [replace(make_group(position, MIXED), weights_version=version) for position in at]


@examples(60)
@given(st.lists(st.integers(0, 6), max_size=12), st.integers(0, 6), st.integers(0, 4))
def test_exactly_the_groups_that_are_fresh_enough_are_used(versions, now, max_age):
    leftovers = Leftovers(max_age)
    for position, version in enumerate(versions):
        leftovers.put(sampled_by(version, position))
    fresh = [i for i, version in enumerate(versions) if now - version <= max_age]
    assert positions(leftovers.take(now)) == fresh
    assert leftovers.expired == len(versions) - len(fresh)
    assert leftovers.take(now) == ()
    assert leftovers.expired == 0
    assert len(leftovers) == 0


def test_age_zero_keeps_what_a_skipped_update_leaves():
    leftovers = Leftovers(0)
    leftovers.put(sampled_by(3, 1))
    assert positions(leftovers.take(3)) == [1]
    leftovers.put(sampled_by(3, 1))
    assert leftovers.take(4) == ()


def test_groups_come_in_problem_order_and_one_for_each_problem():
    leftovers = Leftovers(1)
    leftovers.put(sampled_by(0, 9, 4))
    leftovers.put(sampled_by(1, 7, 4))
    assert len(leftovers) == 3
    taken = leftovers.take(1)
    assert positions(taken) == [4, 7, 9]
    assert taken[0].weights_version == 1


def test_the_state_is_the_groups_themselves():
    leftovers = Leftovers(2)
    leftovers.put(sampled_by(0, 9, 4))
    state = pickle.loads(pickle.dumps(leftovers.get_state()))  # noqa: S301
    assert type(state) is tuple
    restored = Leftovers(2)
    restored.put(sampled_by(0, 100))
    restored.set_state(state)
    assert positions(restored.take(2)) == [4, 9]
    assert positions(leftovers.get_state()) == [4, 9]  # reading it took nothing away


def test_a_negative_age_is_refused():
    with pytest.raises(SettingError, match="max_staleness=-1") as caught:
        Leftovers(-1)
    assert caught.value.setting == "max_staleness"


# -- With the sampler ---------------------------------------------------------------------


@examples(60)
@given(
    st.integers(1, 6),
    st.lists(st.sampled_from("mw"), min_size=1, max_size=12).filter(lambda p: "m" in p),
    st.integers(0, 2),
    st.sampled_from(["problem", "completion"]),
    st.randoms(use_true_random=False),
)
def test_over_many_batches_every_group_is_trained_on_once_or_has_expired(
    wanted, pattern, max_age, order, random
):
    leftovers, estimate = Leftovers(max_age), KeepRate(wanted)
    asked, trained, expired = 0, Counter(), 0
    for version in range(6):
        sampler = DynamicSampler(wanted, max_problems=100 * wanted, keep_rate=estimate, order=order)
        sampler.carry_over(leftovers.take(version))
        expired += leftovers.expired
        asked += len(
            sample(
                sampler,
                lambda i: MIXED if pattern[i % len(pattern)] == "m" else WRONG,
                random,
                start=asked,
                version=version,
            )
        )
        batch, surplus = sampler.result()
        assert all(version - group.weights_version <= max_age for group in batch)
        trained.update(positions(batch))
        leftovers.put(surplus)
        estimate.learn(*sampler.observed)
    assert set(trained.values()) == {1}
    assert trained.total() == 6 * wanted
    kept = sum(pattern[i % len(pattern)] == "m" for i in range(asked))
    assert kept == trained.total() + expired + len(leftovers)


def test_leftovers_lower_what_the_next_batch_asks_for():
    leftovers = Leftovers(1)
    leftovers.put(sampled_by(0, 1, 2, 3))
    sampler = DynamicSampler(8, max_problems=80)
    sampler.carry_over(leftovers.take(1))
    assert len(ask(sampler, 10)) == 5
