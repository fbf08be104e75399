"""The bounded search for enough groups with a signal."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, make_group

from rllib_dapo.errors import SamplingError, SettingError
from rllib_dapo.sampling.dynamic import DynamicSampler, Progress

RIGHT, WRONG, MIXED = [1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]


def run(sampler, scores_of, shuffle=None):
    """Sample until the sampler wants no more; returns the sizes of the rounds."""
    sizes, position = [], 0
    while count := sampler.next_request():
        groups = [make_group(position + i, scores_of(position + i)) for i in range(count)]
        position += count
        sizes.append(count)
        if shuffle is not None:
            shuffle(groups)
        for group in groups:
            sampler.add(group)
    return sizes


def positions(groups):
    return [group.ref.position for group in groups]


# -- The search -----------------------------------------------------------------------


def test_requests_adapt_to_the_share_of_groups_kept():
    """Every fourth group carries a signal: 8 give 2, and the missing 6 take 24 more."""
    sampler = DynamicSampler(8)
    assert run(sampler, lambda i: MIXED if i % 4 == 0 else WRONG) == [8, 24]
    assert sampler.full
    assert sampler.keep_rate == 0.25
    assert sampler.counts == {"kept": 8, "all_wrong": 24}
    kept, surplus = sampler.result()
    assert positions(kept) == list(range(0, 32, 4))
    assert surplus == ()


def test_the_first_round_uses_the_previous_batchs_share():
    sampler = DynamicSampler(8, keep_rate=0.5)
    assert run(sampler, lambda _: MIXED) == [16]
    kept, surplus = sampler.result()
    assert positions(kept) == list(range(8))
    assert positions(surplus) == list(range(8, 16))


def test_a_request_is_never_larger_than_four_batches():
    assert DynamicSampler(8, keep_rate=0.0).next_request() == 32
    sampler = DynamicSampler(8, max_rounds=3, at_limit="skip")
    assert run(sampler, lambda _: WRONG) == [8, 32, 32]


@examples(60)
@given(
    st.integers(1, 6),
    st.lists(st.sampled_from(["m", "w", "r", "f"]), min_size=1, max_size=20),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_the_batch_is_the_first_groups_of_the_stream_in_any_order_of_completion(
    wanted, pattern, enabled, random
):
    """Else problems with short answers, which finish first, would be preferred."""
    scores = {"m": MIXED, "w": WRONG, "r": RIGHT, "f": [math.nan, 1.0]}

    def scores_of(i):
        return scores[pattern[i % len(pattern)]]

    def sample(shuffle):
        sampler = DynamicSampler(wanted, enabled=enabled, at_limit="train_on_partial")
        run(sampler, scores_of, shuffle)
        return [positions(part) for part in sampler.result()], sampler.progress

    in_order, shuffled = sample(None), sample(random.shuffle)
    assert in_order == shuffled
    (kept, surplus), progress = in_order
    wanted_letters = "m" if enabled else "mwr"
    stream = [i for i in range(progress.samples) if pattern[i % len(pattern)] in wanted_letters]
    assert kept == stream[:wanted]
    assert surplus == stream[wanted:]
    assert progress.kept == len(stream)
    assert progress.kept + sum(progress.dropped.values()) == progress.samples
    assert progress.rounds <= progress.max_rounds


def test_a_round_must_be_complete_before_the_next_one():
    """Enough groups are not enough: one that is still being sampled may come before them."""
    sampler = DynamicSampler(2, keep_rate=0.5)
    assert sampler.next_request() == 4
    for position in (1, 2, 3):
        sampler.add(make_group(position, MIXED))
    assert not sampler.full
    with pytest.raises(SamplingError, match="1 of its groups"):
        sampler.next_request()
    sampler.add(make_group(0, MIXED))
    assert sampler.full
    assert positions(sampler.result()[0]) == [0, 1]


def test_progress_is_a_snapshot():
    sampler = DynamicSampler(4)
    sampler.next_request()
    sampler.add(make_group(0, MIXED))
    before = sampler.progress
    sampler.add(make_group(1, WRONG))
    assert before.samples == 1
    assert sampler.progress == Progress(
        kept=1,
        wanted=4,
        dropped={"all_wrong": 1, "all_correct": 0, "equal_scores": 0, "failed": 0},
        carried=0,
        samples=2,
        rounds=1,
        max_rounds=10,
    )


def test_two_problems_with_the_same_text_stay_two_groups():
    sampler = DynamicSampler(2)
    sampler.next_request()
    sampler.add(make_group(3, MIXED, text="1+1=?"))
    sampler.add(make_group(8, MIXED, text="1+1=?"))
    assert positions(sampler.result()[0]) == [3, 8]


def test_a_problem_answered_twice_counts_once():
    """Asked again because its runner seemed dead, and then both answers came."""
    sampler = DynamicSampler(2)
    sampler.next_request()
    assert [sampler.add(make_group(i, MIXED)) for i in (0, 0, 1)] == ["kept"] * 3
    assert sampler.samples == 2
    assert sampler.duplicates == 1
    assert positions(sampler.result()[0]) == [0, 1]


def test_a_failed_problem_may_be_tried_again_at_its_position():
    sampler = DynamicSampler(2)
    sampler.next_request()
    sampler.add(make_group(0, MIXED))
    sampler.add(make_group(1, MIXED, failure="runner died"))
    assert sampler.next_request() == 2
    assert sampler.add(make_group(1, MIXED)) == "kept"
    assert sampler.duplicates == 0


def test_groups_carried_over_come_first_and_are_not_counted_again():
    sampler = DynamicSampler(4, keep_rate=0.5)
    sampler.carry_over([make_group(7, MIXED), make_group(5, MIXED)])
    assert sampler.next_request() == 4
    for i, scores in enumerate([WRONG, MIXED, WRONG, MIXED]):
        sampler.add(make_group(10 + i, scores))
    assert sampler.keep_rate == 0.5
    assert sampler.progress.carried == 2
    assert positions(sampler.result()[0]) == [5, 7, 11, 13]


def test_enough_carried_groups_need_no_round():
    sampler = DynamicSampler(1)
    sampler.carry_over([make_group(5, MIXED), make_group(6, MIXED)])
    assert sampler.next_request() == 0
    assert [positions(part) for part in sampler.result()] == [[5], [6]]


# -- Switched off -----------------------------------------------------------------------


def test_switched_off_one_round_keeps_every_group():
    sampler = DynamicSampler(4, enabled=False, keep_rate=0.1)
    assert run(sampler, lambda i: [WRONG, RIGHT, MIXED, WRONG][i]) == [4]
    kept, surplus = sampler.result()
    assert positions(kept) == [0, 1, 2, 3]
    assert surplus == ()
    assert sampler.progress.dropped == {"failed": 0}
    assert sampler.counts == {"all_wrong": 2, "all_correct": 1, "kept": 1}


def test_switched_off_failed_groups_are_replaced_one_for_one():
    sampler = DynamicSampler(4, enabled=False)
    assert run(sampler, lambda i: [math.nan, 1.0] if i < 2 else WRONG) == [4, 2]
    assert positions(sampler.result()[0]) == [2, 3, 4, 5]
    assert sampler.progress.dropped == {"failed": 2}


# -- The limit --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "reason", "remedy"),
    [
        (WRONG, "all_wrong", "too hard"),
        (RIGHT, "all_correct", "too easy"),
        ([math.nan, 1.0], "failed", "could not score"),
    ],
)
def test_at_the_limit_the_error_has_counts_reasons_and_remedies(scores, reason, remedy):
    sampler = DynamicSampler(4, max_rounds=3)
    assert run(sampler, lambda i: MIXED if i == 0 else scores) != []
    with pytest.raises(SamplingError) as caught:
        sampler.result()
    message = str(caught.value)
    assert "kept 1 of 4 groups in 3 rounds (max_sampling_rounds=3)" in message
    assert f"{sampler.counts[reason]} {reason}" in message
    assert remedy in message
    assert "at_sampling_limit" in message


def test_the_error_shows_how_the_last_group_failed():
    sampler = DynamicSampler(1, max_rounds=1)
    sampler.next_request()
    sampler.add(make_group(0, MIXED, failure="ZeroDivisionError in reward"))
    with pytest.raises(SamplingError, match="ZeroDivisionError in reward"):
        sampler.result()


def test_at_the_limit_partial_batches_train_on_what_there_is():
    sampler = DynamicSampler(4, max_rounds=2, at_limit="train_on_partial")
    run(sampler, lambda i: MIXED if i in (1, 3) else WRONG)
    assert [positions(part) for part in sampler.result()] == [[1, 3], []]


def test_at_the_limit_skip_trains_on_nothing_and_loses_nothing():
    sampler = DynamicSampler(4, max_rounds=2, at_limit="skip")
    run(sampler, lambda i: MIXED if i in (1, 3) else WRONG)
    assert [positions(part) for part in sampler.result()] == [[], [1, 3]]


@pytest.mark.parametrize("at_limit", ["train_on_partial", "skip"])
@pytest.mark.parametrize("scores", [WRONG, RIGHT, [math.nan, 0.0]])
def test_a_reward_that_is_constant_for_ever_ends_with_an_empty_batch(scores, at_limit):
    sampler = DynamicSampler(2, max_rounds=4, at_limit=at_limit)
    assert len(run(sampler, lambda _: scores)) == 4
    assert sampler.result() == ((), ())
    assert sampler.keep_rate == 0.0


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ({"wanted": 0}, "groups_per_batch"),
        ({"wanted": 1, "max_rounds": 0}, "max_sampling_rounds"),
        ({"wanted": 1, "at_limit": "retry"}, "at_sampling_limit"),
    ],
)
def test_a_sampler_that_cannot_fill_a_batch_is_refused(arguments, setting):
    with pytest.raises(SettingError, match=setting) as caught:
        DynamicSampler(**arguments)
    assert caught.value.setting == setting
