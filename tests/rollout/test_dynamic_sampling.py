"""The search for enough groups with a signal: how much is asked, and that none is lost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling_loops import (
    ENDLESS,
    LETTERS,
    MIXED,
    WRONG,
    ask,
    asked_at,
    positions,
    problems,
    sample,
)
from strategies import examples, make_group

from rllib_dapo.rollout.demand import KeepRate
from rllib_dapo.rollout.dynamic_sampling import DynamicSampler
from rllib_dapo.rollout.group_filter import BatchProgress

# -- The search -----------------------------------------------------------------------


@examples(150)
@given(
    st.integers(1, 5),
    st.integers(1, 6),
    st.lists(st.sampled_from("mwrf"), min_size=1, max_size=20),
    st.sampled_from(["problem", "completion"]),
    st.booleans(),
    st.sampled_from(["train_on_partial", "skip"]),
    st.integers(0, 7),
    st.randoms(use_true_random=False),
)
def test_no_group_is_lost_and_none_counts_twice(
    wanted, rounds, pattern, order, enabled, at_limit, carried, random
):
    sampler = DynamicSampler(
        wanted,
        max_problems=rounds * wanted,
        order=order,
        enabled=enabled,
        at_limit=at_limit,
    )
    carried_groups = [make_group(i, MIXED) for i in range(carried)]
    sampler.carry_over(carried_groups)
    earlier = problems(carried, carried + 1)
    sampler.expect(earlier, earlier=True)
    asked, in_flight = [], asked_at(earlier)
    while not sampler.done:
        if random.random() < 0.5 or not in_flight:
            new = ask(sampler, carried + 2 + len(asked))
            asked, in_flight = asked + new, in_flight + new
        if in_flight:
            position = in_flight.pop(random.randrange(len(in_flight)))
            group = make_group(position, LETTERS[pattern[position % len(pattern)]])
            sampler.add(group)
            assert sampler.add(group) is None  # its second answer
    batch, surplus = sampler.result()
    dropped = sum(sampler.progress.dropped.values())
    left = asked_at(sampler.in_flight)
    assert left == sorted(in_flight)
    assert len({*positions(batch), *positions(surplus), *left}) == (
        len(batch) + len(surplus) + len(left)
    )
    assert len(batch) + len(surplus) + len(left) + dropped == carried + 2 + len(asked)
    assert len(asked) <= rounds * wanted
    assert len(batch) <= wanted
    if len(batch) < wanted:
        assert len(asked) == rounds * wanted
        assert not left


def test_what_is_asked_adapts_to_the_share_of_groups_kept():
    """Every fourth group carries a signal: after 8 of them 24 more are asked for, or nearly."""
    sampler = DynamicSampler(8, max_problems=ENDLESS, margin=0.0)
    assert len(ask(sampler)) == 8
    for i in range(8):
        sampler.add(make_group(i, MIXED if i % 4 == 0 else WRONG))
    assert sampler.observed == (2, 8)
    assert sampler.rate == (2 + 2) / (2 + 8)  # as if 2 groups had been kept before
    assert sampler.demand == 6 / 0.4
    for i in range(8, 8 + len(ask(sampler, 8))):
        sampler.add(make_group(i, WRONG))
    assert sampler.demand > 6 / 0.25


def test_more_is_asked_for_while_others_are_still_answered():
    sampler = DynamicSampler(4, max_problems=ENDLESS)
    assert len(ask(sampler)) == 4
    sampler.add(make_group(0, WRONG))
    assert asked_at(sampler.in_flight) == [1, 2, 3]
    assert sampler.demand > 0


def test_demand_is_what_was_not_asked_yet():
    sampler = DynamicSampler(4, max_problems=ENDLESS)
    assert sampler.demand == sampler.demand == 4
    sampler.expect(problems(0, 1, 2))
    assert sampler.demand == 1
    sampler.expect(problems(2))  # known already
    assert sampler.demand == 1


def test_the_first_request_uses_the_earlier_batches_share():
    estimate = KeepRate(8)
    for _ in range(30):
        estimate.learn(8, 16)
    sampler = DynamicSampler(8, max_problems=ENDLESS, keep_rate=estimate, margin=0.0)
    assert len(sample(sampler, lambda _: MIXED)) == math.ceil(8 / estimate.rate()) == 16
    batch, surplus = sampler.result()
    assert positions(batch) == list(range(8))
    assert positions(surplus) == list(range(8, 16))


def test_a_margin_asks_for_more():
    estimate = KeepRate(8)
    estimate.learn(100, 200)
    demands = [
        DynamicSampler(8, max_problems=ENDLESS, keep_rate=estimate, margin=margin).demand
        for margin in (0.0, 1.0, 2.0)
    ]
    assert demands[0] < demands[1] < demands[2]


@pytest.mark.parametrize("order", ["problem", "completion"])
def test_never_are_more_than_four_batches_asked_for_ahead(order):
    sampler = DynamicSampler(8, max_problems=ENDLESS, order=order)
    asked = 0
    for i in range(200):
        asked += len(ask(sampler, asked))
        assert asked <= i + 4 * 8
        sampler.add(make_group(i, WRONG))
    assert asked == 199 + 4 * 8


# -- Counting -------------------------------------------------------------------------


def test_progress_is_a_snapshot():
    sampler = DynamicSampler(4, max_problems=40)
    sampler.carry_over([make_group(0, MIXED)])
    sampler.expect(problems(1), earlier=True)
    sampler.expect(problems(2, 3, 4))
    sampler.add(make_group(2, MIXED))
    before = sampler.progress
    sampler.add(make_group(3, WRONG))
    assert before.resolved == 1
    none = dict.fromkeys(("all_correct", "equal_scores", "truncated", "ungraded", "failed"), 0)
    assert sampler.progress == BatchProgress(
        kept=2,
        wanted=4,
        dropped={"all_wrong": 1, **none},
        carried=1,
        asked=3,
        resolved=2,
        in_flight=2,
        limit=40,
    )


def test_two_problems_with_the_same_text_stay_two_groups():
    sampler = DynamicSampler(2, max_problems=ENDLESS)
    sampler.expect(problems(3, 8))
    sampler.add(make_group(8, MIXED, text="1+1=?"))
    sampler.add(make_group(3, MIXED, text="1+1=?"))
    assert positions(sampler.result()[0]) == [3, 8]


def test_a_problem_answered_twice_counts_once():
    """Asked again because its runner seemed dead, and then both answers came."""
    sampler = DynamicSampler(2, max_problems=ENDLESS)
    ask(sampler)
    assert [sampler.add(make_group(i, MIXED)) for i in (0, 0, 1)] == ["kept", None, "kept"]
    assert sampler.counts == {"kept": 2}
    assert sampler.duplicates == 1
    assert positions(sampler.result()[0]) == [0, 1]


def test_a_group_that_nobody_asked_for_is_ignored():
    """The second answer to a problem of a batch that is over."""
    sampler = DynamicSampler(1, max_problems=ENDLESS)
    sampler.carry_over([make_group(3, MIXED)])
    assert sampler.add(make_group(2, MIXED)) is None
    assert sampler.add(make_group(3, MIXED)) is None
    assert sampler.duplicates == 2
    assert sampler.counts == {}
    assert [positions(part) for part in sampler.result()] == [[3], []]


# -- From batch to batch ----------------------------------------------------------------


def test_groups_carried_over_come_first_and_are_not_counted_again():
    sampler = DynamicSampler(4, max_problems=ENDLESS)
    sampler.carry_over([make_group(7, MIXED), make_group(5, MIXED)])
    assert ask(sampler, 10) == [10, 11]
    sampler.add(make_group(11, MIXED))
    sampler.add(make_group(10, MIXED))
    assert sampler.observed == (2, 2)
    assert sampler.progress.carried == 2
    assert positions(sampler.result()[0]) == [5, 7, 10, 11]


def test_enough_carried_groups_need_no_problem():
    sampler = DynamicSampler(1, max_problems=ENDLESS)
    sampler.carry_over([make_group(6, MIXED), make_group(5, MIXED)])
    assert sampler.done
    assert sampler.demand == 0
    assert [positions(part) for part in sampler.result()] == [[5], [6]]


def test_problems_still_in_flight_from_before_are_waited_for_and_not_held_against_the_limit():
    sampler = DynamicSampler(2, max_problems=2, at_limit="skip")
    sampler.expect(problems(3, 4), earlier=True)
    assert sampler.demand == 0
    sampler.add(make_group(4, WRONG))
    sampler.add(make_group(3, WRONG))
    assert ask(sampler, 5) == [5, 6]
    sampler.add(make_group(6, MIXED))
    sampler.add(make_group(5, MIXED))
    assert positions(sampler.result()[0]) == [5, 6]
