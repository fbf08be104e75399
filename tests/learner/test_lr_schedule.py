"""The learning rate: linear warm-up over rollout steps, then constant or cosine."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from rllib_dapo.learner.lr_schedule import learning_rate_factor


def cosine(step, *, warmup=0, decay_steps=None, end_factor=0.0):
    return learning_rate_factor(
        step, warmup=warmup, schedule="cosine", decay_steps=decay_steps, end_factor=end_factor
    )


def test_warmup_is_the_papers_ramp_and_begins_above_zero():
    factors = [learning_rate_factor(s, warmup=20) for s in range(22)]
    assert factors == pytest.approx([(s + 1) / 20 for s in range(20)] + [1.0, 1.0])
    assert factors[19] == 1.0


def test_without_warmup_the_first_step_is_a_full_one():
    assert learning_rate_factor(0, warmup=0) == 1.0
    assert cosine(0, decay_steps=10) == 1.0


def test_cosine_at_a_few_steps_known_by_heart():
    factors = [cosine(s, warmup=2, decay_steps=6, end_factor=0.1) for s in range(9)]
    quarter = 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2
    three_quarters = 0.1 + 0.9 * (1 - math.sqrt(0.5)) / 2
    expected = [0.5, 1.0, 1.0, quarter, 0.55, three_quarters, 0.1, 0.1, 0.1]
    assert factors == pytest.approx(expected, rel=1e-12)


@examples(200)
@given(
    st.integers(0, 200),
    st.integers(0, 50),
    st.integers(1, 100),
    st.floats(0, 1, allow_subnormal=False),
)
def test_cosine_rises_to_one_then_falls_symmetrically_to_its_end(step, warmup, length, end_factor):
    """The fall is point-symmetric about its middle, and flat at both ends."""
    end = warmup + length

    def factor(at):
        return cosine(at, warmup=warmup, decay_steps=end, end_factor=end_factor)

    got = factor(step)
    assert 0.0 <= got <= 1.0
    if step < warmup:
        assert got == pytest.approx((step + 1) / warmup)
    elif step >= end:
        assert got == pytest.approx(end_factor, abs=1e-12)
    else:
        assert factor(step + 1) <= got
        assert got + factor(warmup + end - step) == pytest.approx(1.0 + end_factor)
        assert 1.0 - factor(warmup) <= 1e-12
        steepest = (1.0 - end_factor) * math.pi / 2 / length  # of a half cosine, in its middle
        assert got - factor(step + 1) <= steepest + 1e-12


def test_it_falls_all_the_way_to_zero_but_not_before_the_end():
    assert cosine(9, decay_steps=10) > 0.0
    assert cosine(10, decay_steps=10) == 0.0
    assert cosine(10**6, decay_steps=10) == 0.0
