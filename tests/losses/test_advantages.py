"""Group-relative advantages: Eq. 9, its variants, and the groups without a signal."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, rewards

from rllib_dapo.errors import SettingError, TrainingError
from rllib_dapo.losses.advantages import group_advantages


def reference(values, baseline="group_mean", normalize_std=True, epsilon=1e-6):
    """Eq. 9 with Python floats; `statistics.stdev` divides by G - 1."""
    if len(set(values)) == 1:
        return [0.0] * len(values)
    result = []
    for i, value in enumerate(values):
        others = values if baseline == "group_mean" else values[:i] + values[i + 1 :]
        advantage = value - statistics.fmean(others)
        result.append(
            advantage / (statistics.stdev(values) + epsilon) if normalize_std else advantage
        )
    return result


@examples(150)
@given(rewards(), st.sampled_from(["group_mean", "leave_one_out"]), st.booleans())
def test_equals_the_formula_for_any_group(values, baseline, normalize_std):
    got = group_advantages(values, baseline=baseline, normalize_std=normalize_std)
    assert got.dtype == np.float32
    assert np.isfinite(got).all()
    np.testing.assert_allclose(
        got, reference(values, baseline, normalize_std), rtol=1e-6, atol=1e-6
    )


def test_worked_example_with_one_correct_completion_of_four():
    """Mean -0.5, sample std 1."""
    np.testing.assert_allclose(
        group_advantages([1, -1, -1, -1]), [1.5, -0.5, -0.5, -0.5], rtol=2e-6
    )


def test_standard_deviation_is_the_recipes_sample_form():
    sample, population = math.sqrt(2), 1.0
    advantage = group_advantages([1.0, -1.0])[0]
    assert advantage == pytest.approx(1 / sample, rel=1e-5)
    assert advantage != pytest.approx(1 / population, rel=1e-1)


@examples(100)
@given(
    st.lists(st.floats(-1, 1), min_size=2, max_size=16),
    st.randoms(use_true_random=False),
    st.sampled_from(["group_mean", "leave_one_out"]),
)
def test_order_of_the_completions_changes_nothing_to_the_last_bit(values, random, baseline):
    order = list(range(len(values)))
    random.shuffle(order)
    shuffled = group_advantages([values[i] for i in order], baseline=baseline)
    np.testing.assert_array_equal(shuffled, group_advantages(values, baseline=baseline)[order])


def test_sums_are_exact_where_adding_in_turn_would_lose_a_reward():
    for values in ([1e16, 1.0, -1e16], [1.0, 1e16, -1e16], [1e16, -1e16, 1.0]):
        got = group_advantages(values, normalize_std=False)
        assert got[values.index(1.0)] == pytest.approx(2 / 3)


@pytest.mark.parametrize("value", [0.95, 0.1, -1.0, 0.5, 0.0])
@pytest.mark.parametrize("size", [2, 3, 7, 16])
def test_equal_rewards_give_exactly_zero(value, size):
    assert group_advantages([value] * size).tolist() == [0.0] * size
    assert group_advantages([value] * size, baseline="leave_one_out").tolist() == [0.0] * size


def test_equal_rewards_are_recognised_where_their_standard_deviation_is_not_zero():
    """The reason for comparing max and min: a test of std == 0 would miss this group."""
    assert np.std([0.95] * 7) != 0.0
    assert not group_advantages([0.95] * 7).any()


@examples(50)
@given(st.lists(st.booleans(), min_size=2, max_size=16))
def test_zero_one_and_plus_minus_one_rewards_give_the_same_advantages(correct):
    zero_one = group_advantages([float(c) for c in correct])
    plus_minus = group_advantages([1.0 if c else -1.0 for c in correct])
    np.testing.assert_allclose(zero_one, plus_minus, rtol=1e-5)


@examples(50)
@given(rewards())
def test_advantages_of_a_group_sum_to_zero(values):
    assert abs(group_advantages(values).astype(np.float64).sum()) < 1e-5


def test_nearly_equal_rewards_stay_small_and_finite():
    got = group_advantages([0.3, 0.1 + 0.2])
    assert np.isfinite(got).all()
    assert abs(got).max() < 1e-9


@pytest.mark.parametrize("values", [[1.0], [], [[1.0, 2.0]]])
def test_a_group_of_one_is_refused_and_the_message_names_the_setting(values):
    with pytest.raises(SettingError, match="group_size") as caught:
        group_advantages(values)
    assert caught.value.setting == "group_size"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_refused_instead_of_poisoning_its_group(bad):
    with pytest.raises(TrainingError, match=r"rewards\[1\]"):
        group_advantages([1.0, bad, -1.0])


def test_an_unknown_baseline_is_refused():
    with pytest.raises(SettingError, match="leave_one_out"):
        group_advantages([1.0, 2.0], baseline="median")  # type: ignore[arg-type]
