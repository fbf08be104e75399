"""Groups that no batch used yet."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from sampling_loops import MIXED, WRONG, ask, positions, sample
from strategies import examples, make_group

from rllib_dapo.rollout.demand import KeepRate
from rllib_dapo.rollout.dynamic_sampling import DynamicSampler
from rllib_dapo.rollout.group_buffer import GroupBuffer
from rllib_dapo.types import Group


def sampled_by(version: int, *at: int) -> list[Group]:
    return [replace(make_group(position, MIXED), weights_version=version) for position in at]


@examples(60)
@given(st.lists(st.integers(0, 6), max_size=12), st.integers(0, 6), st.integers(0, 4))
def test_exactly_the_groups_that_are_fresh_enough_are_used(versions, now, max_staleness):
    buffer = GroupBuffer(max_staleness)
    for position, version in enumerate(versions):
        buffer.put(sampled_by(version, position))
    fresh = [i for i, version in enumerate(versions) if now - version <= max_staleness]
    assert positions(buffer.take(now)) == fresh
    assert buffer.expired == len(versions) - len(fresh)
    assert buffer.take(now) == ()
    assert buffer.expired == 0
    assert len(buffer) == 0


def test_age_zero_keeps_what_a_skipped_update_leaves():
    buffer = GroupBuffer(0)
    buffer.put(sampled_by(3, 1))
    assert positions(buffer.take(3)) == [1]
    buffer.put(sampled_by(3, 1))
    assert buffer.take(4) == ()


def test_groups_come_in_problem_order_and_one_for_each_problem():
    buffer = GroupBuffer(1)
    buffer.put(sampled_by(0, 9, 4))
    buffer.put(sampled_by(1, 7, 4))
    assert len(buffer) == 3
    taken = buffer.take(1)
    assert positions(taken) == [4, 7, 9]
    assert taken[0].weights_version == 1


def test_the_state_is_the_groups_themselves():
    buffer = GroupBuffer(2)
    buffer.put(sampled_by(0, 9, 4))
    state = pickle.loads(pickle.dumps(buffer.get_state()))  # noqa: S301
    assert type(state) is tuple
    restored = GroupBuffer(2)
    restored.put(sampled_by(0, 100))
    restored.set_state(state)
    assert positions(restored.take(2)) == [4, 9]
    assert positions(buffer.get_state()) == [4, 9]  # reading it took nothing away


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
    wanted, pattern, max_staleness, order, random
):
    buffer, estimate = GroupBuffer(max_staleness), KeepRate(wanted)
    asked, trained, expired = 0, Counter(), 0
    for version in range(6):
        sampler = DynamicSampler(wanted, max_problems=100 * wanted, keep_rate=estimate, order=order)
        sampler.carry_over(buffer.take(version))
        expired += buffer.expired
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
        assert all(version - group.weights_version <= max_staleness for group in batch)
        trained.update(positions(batch))
        buffer.put(surplus)
        estimate.learn(*sampler.observed)
    assert set(trained.values()) == {1}
    assert trained.total() == 6 * wanted
    kept = sum(pattern[i % len(pattern)] == "m" for i in range(asked))
    assert kept == trained.total() + expired + len(buffer)


def test_leftovers_lower_what_the_next_batch_asks_for():
    buffer = GroupBuffer(1)
    buffer.put(sampled_by(0, 1, 2, 3))
    sampler = DynamicSampler(8, max_problems=80)
    sampler.carry_over(buffer.take(1))
    assert len(ask(sampler, 10)) == 5
