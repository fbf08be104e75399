"""How many problems are asked for."""

from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import examples

from rllib_dapo.rollout.demand import KeepRate, problems_needed

COUNTS = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda c: (c[0], c[0] + c[1]))


def brute_force(missing: int, rate: float, margin: float) -> int:
    """Counting up from none."""
    n = 0
    while n * rate - margin * math.sqrt(rate * (1 - rate)) * math.sqrt(n) < missing:
        n += 1
    return n


@examples(200)
@example(27, 3 / 11, 0.0)  # 99 times this is less than 27 in floating point
@given(st.integers(0, 60), st.floats(0.05, 1.0), st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_problems_needed_is_the_smallest_number_that_is_enough(missing, rate, margin):
    assert problems_needed(missing, rate, margin) == brute_force(missing, rate, margin)


@pytest.mark.parametrize("missing", [1, 3, 32, 512])
@pytest.mark.parametrize("share", [1, 2, 4, 5, 10, 20])
def test_without_a_margin_no_problem_more_than_the_rate_says(missing, share):
    assert problems_needed(missing, 1 / share) == missing * share


def test_a_margin_costs_nothing_where_every_group_is_kept():
    assert problems_needed(7, 1.0, margin=3.0) == 7
    assert problems_needed(7, 0.5, margin=3.0) > 14


@pytest.mark.parametrize("missing", [0, -3])
def test_nothing_is_needed_for_a_full_batch(missing):
    assert problems_needed(missing, 0.5, 1.0) == 0


def test_a_margin_of_two_deviations_fills_the_batch_in_most_cases():
    """Exactly: the chance that of n groups, each kept by itself, 32 or more are."""
    n = problems_needed(32, 0.5, margin=2.0)
    enough = sum(math.comb(n, k) for k in range(32, n + 1)) / 2**n
    assert enough > 0.97


# -- The estimate -----------------------------------------------------------------------


@examples(100)
@given(st.integers(1, 64), st.lists(COUNTS, max_size=8), COUNTS)
def test_the_estimate_is_the_ratio_of_counts_that_halve_every_two_batches(wanted, batches, now):
    estimate = KeepRate(wanted)
    for batch in batches:
        estimate.learn(*batch)
    told = [batch for batch in batches if batch[1]]
    first = max(1.0, wanted / 4)
    ages = [0.5 ** ((len(told) - 1 - i) / 2) for i in range(len(told))]
    start = first * 0.5 ** (len(told) / 2)
    kept = start + now[0] + sum(age * k for age, (k, _) in zip(ages, told, strict=True))
    sampled = start + now[1] + sum(age * n for age, (_, n) in zip(ages, told, strict=True))
    assert estimate.rate(*now) == pytest.approx(max(0.05, kept / sampled), rel=1e-12)
    assert 0.05 <= estimate.rate(*now) <= 1.0


def test_nothing_is_known_at_first_and_every_group_hoped_to_be_kept():
    assert KeepRate(32).rate() == 1.0
    assert KeepRate(32).rate(0, 1) > 0.8  # one group says little
    assert KeepRate(32).rate(0, 1000) == 0.05


def test_a_batch_of_left_over_groups_alone_says_nothing():
    """It sampled none; were it to count as a batch, what is known would weigh less."""
    estimates = KeepRate(8), KeepRate(8)
    for estimate in estimates:
        estimate.learn(10, 100)
    estimates[1].learn(0, 0)
    assert estimates[0].rate(50, 50) == estimates[1].rate(50, 50)


def test_a_changed_share_is_followed_within_a_few_batches():
    estimate = KeepRate(8)
    for _ in range(10):
        estimate.learn(8, 80)
    assert estimate.rate() == pytest.approx(0.1, abs=0.01)
    for _ in range(10):
        estimate.learn(80, 80)
    assert estimate.rate() > 0.9


def test_the_estimate_goes_on_from_its_state():
    estimate = KeepRate(8)
    estimate.learn(3, 17)
    state = pickle.loads(pickle.dumps(estimate.get_state()))  # noqa: S301
    assert all(type(value) is float for value in state.values())
    other = KeepRate(200)
    other.set_state(state)
    assert other.rate(1, 2) == estimate.rate(1, 2)
