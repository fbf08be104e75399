"""Soft overlong punishment: Eq. 13 and the intervals it is not defined for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from rllib_dapo.errors import SettingError
from rllib_dapo.rewards.length import check_soft_overlong, soft_overlong_punishment


def reference(length, max_length, cache):
    """The three cases of Eq. 13."""
    if length <= max_length - cache:
        return 0.0
    if length <= max_length:
        return ((max_length - cache) - length) / cache
    return -1.0


@examples(200)
@given(st.data(), st.integers(1, 200))
def test_equals_the_three_cases_for_any_length(data, max_length):
    cache = data.draw(st.integers(1, max_length))
    length = data.draw(st.integers(0, 2 * max_length))
    assert soft_overlong_punishment(length, max_length=max_length, cache=cache) == reference(
        length, max_length, cache
    )


@pytest.mark.parametrize(
    ("length", "expected"),
    [(0, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20480, -1.0), (20481, -1.0)],
)
def test_the_papers_numbers(length, expected):
    got = soft_overlong_punishment(length, max_length=20480, cache=4096)
    assert isinstance(got, float)
    assert got == expected


def test_an_array_of_lengths_gives_an_array():
    lengths = np.array([0, 5, 6, 8, 10, 11])
    got = soft_overlong_punishment(lengths, max_length=10, cache=4)
    assert got.dtype == np.float64
    assert got.tolist() == [0.0, 0.0, 0.0, -0.5, -1.0, -1.0]


def test_the_interval_may_be_all_of_the_answer():
    assert soft_overlong_punishment(5, max_length=10, cache=10) == -0.5


@pytest.mark.parametrize("cache", [0, -1, 11])
def test_an_impossible_interval_is_refused_with_setting_value_and_remedy(cache):
    for call in (
        lambda: soft_overlong_punishment(3, max_length=10, cache=cache),
        lambda: check_soft_overlong(max_length=10, cache=cache),
    ):
        with pytest.raises(SettingError, match=f"soft_overlong_cache={cache}") as caught:
            call()
        assert caught.value.setting == "soft_overlong_cache"
        assert "max_completion_length" in str(caught.value)
