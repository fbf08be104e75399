"""What is asked and trained on, in whatever order the groups arrive."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling_loops import ENDLESS, LETTERS, MIXED, WRONG, ask, positions, problems, sample
from strategies import examples, make_group

from rllib_dapo.errors import SamplingError
from rllib_dapo.rollout.demand import KeepRate
from rllib_dapo.rollout.dynamic_sampling import DynamicSampler


def reference(wanted, limit, is_kept, margin):
    """Asked, batch and surplus by the rule of the module, one problem after the other."""
    weight = max(1.0, wanted / 4)
    kept, seen, asked = [], 0, 0
    while len(kept) < wanted:
        rate = max(1 / 20, (weight + len(kept)) / (weight + seen))
        needed = 1
        while needed * rate - margin * math.sqrt(rate * (1 - rate) * needed) < wanted - len(kept):
            needed += 1
        asked = min(limit, max(asked, seen + min(needed, 4 * wanted)))
        if seen == asked:
            break
        if is_kept(seen):
            kept.append(seen)
        seen += 1
    return list(range(asked)), kept, [i for i in range(seen, asked) if is_kept(i)]


@examples(150)
@given(
    st.integers(1, 6),
    st.integers(1, 8),
    st.lists(st.sampled_from("mwrf"), min_size=1, max_size=20),
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    st.randoms(use_true_random=False),
)
def test_what_is_asked_trained_on_and_left_over_does_not_depend_on_timing(
    wanted, rounds, pattern, margin, random
):
    """Else no run could be repeated, and problems with short answers would be preferred."""

    def letter(i):
        return pattern[i % len(pattern)]

    def result(random):
        sampler = DynamicSampler(
            wanted, max_problems=rounds * wanted, at_limit="train_on_partial", margin=margin
        )
        asked = sample(sampler, lambda i: LETTERS[letter(i)], random)
        batch, surplus = sampler.result()
        return (asked, positions(batch), positions(surplus)), sampler.observed, sampler.counts

    in_order, shuffled = result(None), result(random)
    assert in_order == shuffled
    expected = reference(wanted, rounds * wanted, lambda i: letter(i) == "m", margin)
    assert in_order[0] == expected


def test_when_one_asks_first_makes_no_difference_to_what_is_asked():
    """Groups of earlier problems may arrive before or after the first new ones are asked for."""
    estimate = KeepRate(4)
    estimate.learn(100, 200)
    demands = []
    for before in (0, 1, 2):
        sampler = DynamicSampler(4, max_problems=ENDLESS, keep_rate=estimate, margin=0.0)
        sampler.expect(problems(0, 1), earlier=True)
        asked = 0
        for i in range(3):
            if i >= before:
                asked += len(ask(sampler, 2 + asked))
            if i < 2:
                sampler.add(make_group(i, MIXED))
        demands.append(asked)
    assert demands == [6, 6, 6]  # and the two from before: the first estimate's 8


def test_a_problem_behind_the_ones_looked_at_is_refused():
    """It would change what the batch has decided already."""
    sampler = DynamicSampler(2, max_problems=ENDLESS)
    sampler.expect(problems(4, 5))
    sampler.expect(problems(3))
    sampler.add(make_group(3, WRONG))
    with pytest.raises(SamplingError, match="problem 2 was noted too late"):
        sampler.expect(problems(2))


def test_enough_groups_do_not_fill_the_batch_while_one_before_them_is_missing():
    sampler = DynamicSampler(2, max_problems=ENDLESS)
    sampler.expect(problems(0, 1, 2, 3))
    for position in (1, 2, 3):
        sampler.add(make_group(position, MIXED))
    assert not sampler.full
    assert sampler.observed == (0, 0)
    sampler.add(make_group(0, MIXED))
    assert sampler.full
    assert [positions(part) for part in sampler.result()] == [[0, 1], [2, 3]]


def test_a_batch_that_fills_in_one_go_still_asks_for_what_it_needed_on_the_way():
    """Problem 0 alone made four more needed; had 1 and 2 come later, they were asked for."""
    sampler = DynamicSampler(2, max_problems=ENDLESS, margin=0.0)
    sampler.expect(problems(0, 1, 2, 3))
    sampler.add(make_group(1, MIXED))
    sampler.add(make_group(2, MIXED))
    sampler.add(make_group(0, WRONG))
    assert sampler.full
    assert not sampler.done
    assert ask(sampler, 4) == [4]
    assert sampler.done
    assert positions(sampler.result()[0]) == [1, 2]


def test_by_completion_the_first_groups_to_arrive_fill_the_batch():
    sampler = DynamicSampler(2, max_problems=ENDLESS, order="completion")
    sampler.expect(problems(0, 1, 2, 3))
    sampler.add(make_group(3, MIXED))
    sampler.add(make_group(2, WRONG))
    assert sampler.observed == (1, 2)
    sampler.add(make_group(1, MIXED))
    assert sampler.full
    sampler.add(make_group(0, MIXED))
    assert [positions(part) for part in sampler.result()] == [[1, 3], [0]]


@pytest.mark.parametrize("order", ["problem", "completion"])
def test_groups_that_arrive_after_the_batch_is_full_are_counted_and_left_over(order):
    sampler = DynamicSampler(1, max_problems=ENDLESS, order=order)
    sampler.expect(problems(0, 1, 2))
    sampler.add(make_group(0, MIXED))
    assert [positions(part) for part in sampler.result()] == [[0], []]
    assert sampler.done
    assert sampler.demand == 0
    assert sampler.add(make_group(1, WRONG)) == "all_wrong"
    assert sampler.add(make_group(2, MIXED)) == "kept"
    assert [positions(part) for part in sampler.result()] == [[0], [2]]
    assert positions(sampler.surplus()) == [2]
    assert sampler.counts == {"kept": 2, "all_wrong": 1}
    assert sampler.observed == (1, 1)  # what comes late may depend on timing


def test_before_the_batch_is_done_everything_kept_is_surplus():
    """So that whoever breaks off loses nothing."""
    sampler = DynamicSampler(2, max_problems=ENDLESS)
    ask(sampler)
    sampler.add(make_group(1, MIXED))
    assert positions(sampler.surplus()) == [1]
    with pytest.raises(SamplingError, match="0 of 2 groups are there, 1 problems in flight"):
        sampler.result()
