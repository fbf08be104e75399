"""Sampling that ends without a full batch, and sampling that drops nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling_loops import BROKEN, ENDLESS, MIXED, RIGHT, WRONG, ask, graded, positions, sample
from strategies import examples, make_group

from rllib_dapo.errors import SamplingError
from rllib_dapo.rollout.demand import KeepRate
from rllib_dapo.rollout.dynamic_sampling import DynamicSampler


def cut_short(position):
    return make_group(position, WRONG, finish_reason="length")


def slow_to_grade(position):
    return graded(make_group(position, WRONG), "timed_out", "different")


# -- Switched off -----------------------------------------------------------------------


def test_switched_off_every_group_is_kept_and_exactly_one_batch_asked():
    estimate = KeepRate(4)
    estimate.learn(0, 1000)
    sampler = DynamicSampler(4, max_problems=ENDLESS, enabled=False, keep_rate=estimate)
    assert sample(sampler, lambda i: [WRONG, RIGHT, MIXED, WRONG][i]) == [0, 1, 2, 3]
    assert [positions(part) for part in sampler.result()] == [[0, 1, 2, 3], []]
    assert sampler.progress.dropped == {"failed": 0}
    assert sampler.counts == {"all_wrong": 2, "all_correct": 1, "kept": 1}


@examples(50)
@given(st.sets(st.integers(0, 9)), st.randoms(use_true_random=False))
def test_switched_off_failed_groups_are_replaced_one_for_one(failing, random):
    sampler = DynamicSampler(4, max_problems=ENDLESS, enabled=False)
    asked = sample(sampler, lambda i: BROKEN if i in failing else WRONG, random)
    good = [i for i in range(14) if i not in failing][:4]
    assert asked == list(range(good[-1] + 1))
    assert [positions(part) for part in sampler.result()] == [good, []]
    assert sampler.progress.dropped == {"failed": len(asked) - 4}


# -- The limit --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group_at", "reason", "remedy"),
    [
        (lambda i: make_group(i, WRONG), "all_wrong", "too hard"),
        (lambda i: make_group(i, RIGHT), "all_correct", "too easy"),
        (cut_short, "truncated", "max_completion_length"),
        (slow_to_grade, "ungraded", "grader"),
        (lambda i: make_group(i, BROKEN), "failed", "could not score"),
    ],
)
def test_at_the_limit_the_error_has_counts_reasons_and_remedies(group_at, reason, remedy):
    sampler = DynamicSampler(4, max_problems=12)
    while not sampler.done:
        asked = sampler.progress.asked
        for position in ask(sampler, asked):
            sampler.add(group_at(position) if position else make_group(0, MIXED))
    with pytest.raises(SamplingError) as caught:
        sampler.result()
    message = str(caught.value)
    assert "kept 1 of 4 groups and has requested 12 problems" in message
    assert "max_sampling_rounds=3 allows (times groups_per_batch=4)" in message
    assert f"of 12 groups sampled it dropped 11 {reason}." in message
    assert f"Mostly {reason}: " in message
    assert remedy in message
    assert "at_sampling_limit" in message
    assert positions(sampler.surplus()) == [0]


def test_the_error_shows_how_the_last_group_failed():
    sampler = DynamicSampler(1, max_problems=1)
    ask(sampler)
    sampler.add(make_group(0, MIXED, failure="ZeroDivisionError in reward"))
    with pytest.raises(SamplingError, match="ZeroDivisionError in reward"):
        sampler.result()


def test_at_the_limit_what_is_in_flight_is_waited_for():
    sampler = DynamicSampler(2, max_problems=2, at_limit="train_on_partial")
    ask(sampler)
    sampler.add(make_group(0, WRONG))
    assert sampler.demand == 0
    assert not sampler.done
    sampler.add(make_group(1, MIXED))
    assert sampler.done
    assert [positions(part) for part in sampler.result()] == [[1], []]


def test_at_the_limit_partial_batches_train_on_what_there_is():
    sampler = DynamicSampler(4, max_problems=8, at_limit="train_on_partial")
    sample(sampler, lambda i: MIXED if i in (1, 3) else WRONG)
    assert [positions(part) for part in sampler.result()] == [[1, 3], []]


def test_at_the_limit_skip_trains_on_nothing_and_loses_nothing():
    sampler = DynamicSampler(4, max_problems=8, at_limit="skip")
    sample(sampler, lambda i: MIXED if i in (1, 3) else WRONG)
    assert [positions(part) for part in sampler.result()] == [[], [1, 3]]


@pytest.mark.parametrize("at_limit", ["train_on_partial", "skip"])
@pytest.mark.parametrize("scores", [WRONG, RIGHT, BROKEN])
def test_a_reward_that_is_constant_for_ever_ends_with_an_empty_batch(scores, at_limit):
    sampler = DynamicSampler(2, max_problems=8, at_limit=at_limit)
    assert len(sample(sampler, lambda _: scores)) == 8
    assert sampler.result() == ((), ())
    assert sampler.observed == (0, 8)
