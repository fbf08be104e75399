"""The learning rate: linear warm-up over rollout steps, then constant or cosine."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from rllib_dapo.learner.lr_schedule import learning_rate_factor


def reference_factor(step, warmup, decay_steps, end_factor):
    """A cosine between two levels, after a ramp."""
    if step < warmup:
        return (step + 1) / warmup
    if step >= decay_steps:
        return end_factor
    angle = math.pi * (step - warmup) / (decay_steps - warmup)
    return end_factor + (1 - end_factor) * (1 + math.cos(angle)) / 2


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
def test_cosine_equals_the_formula_and_stays_between_its_ends(step, warmup, length, end_factor):
    arguments = {"warmup": warmup, "decay_steps": warmup + length, "end_factor": end_factor}
    got = cosine(step, **arguments)
    assert got == pytest.approx(reference_factor(step, **arguments), abs=1e-12)
    assert 0.0 <= got <= 1.0
    if step >= warmup:
        assert cosine(step + 1, **arguments) <= got
        assert got >= end_factor - 1e-12


def test_it_falls_all_the_way_to_zero_but_not_before_the_end():
    assert cosine(9, decay_steps=10) > 0.0
    assert cosine(10, decay_steps=10) == 0.0
    assert cosine(10**6, decay_steps=10) == 0.0
