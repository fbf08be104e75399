"""Which groups carry a signal: the verdict on one group."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling_loops import graded
from strategies import examples, make_group, rewards

from rllib_dapo.losses.advantages import group_advantages
from rllib_dapo.rewards.length import soft_overlong_punishment
from rllib_dapo.rollout.group_filter import REMEDIES, GroupVerdict, classify

RIGHT, WRONG, MIXED = [1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]


@pytest.mark.parametrize(
    ("group", "verdict"),
    [
        (make_group(0, MIXED), "kept"),
        (make_group(0, [0.0, 1.0]), "kept"),
        (make_group(0, RIGHT), "all_correct"),
        (make_group(0, WRONG), "all_wrong"),
        (make_group(0, [0.0, 0.0]), "all_wrong"),
        (make_group(0, [0.5] * 4), "all_correct"),
        (make_group(0, [0.5] * 4, correct=[True, False, True, False]), "equal_scores"),
        (make_group(0, [0.0, -0.0]), "all_wrong"),
        (make_group(0, [0.1 + 0.2, 0.3]), "kept"),
        (make_group(0, MIXED, failure="grader died"), "failed"),
        (make_group(0, MIXED, finish_reason="abort"), "failed"),
        (make_group(0, MIXED, finish_reason="length"), "kept"),
        (make_group(0, WRONG, finish_reason="length"), "truncated"),
        (make_group(0, RIGHT, finish_reason="length"), "all_correct"),
        (make_group(0, WRONG, finish_reason="length", failure="grader died"), "failed"),
        (graded(make_group(0, WRONG), "timed_out", "different"), "ungraded"),
        (graded(make_group(0, WRONG), "different", "no_answer"), "all_wrong"),
        (graded(make_group(0, [-1.0] * 3), "timed_out", "different", "different"), "all_wrong"),
        (graded(make_group(0, [-1.0] * 3), "timed_out", "different", "timed_out"), "ungraded"),
        (graded(make_group(0, MIXED), "value", "timed_out"), "kept"),
        (graded(make_group(0, RIGHT), "timed_out", "timed_out"), "all_correct"),
        (
            graded(make_group(0, WRONG, finish_reason="length"), "timed_out", "timed_out"),
            "truncated",
        ),
        (make_group(0, []), "failed"),
    ],
)
def test_verdict_by_exact_comparison_of_scores(group, verdict):
    assert classify(group) == verdict


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None])
@pytest.mark.parametrize("others", [MIXED, RIGHT, WRONG])
def test_one_bad_score_fails_the_group_instead_of_poisoning_it(bad, others):
    assert classify(make_group(0, [*others, bad])) == "failed"


def test_equal_scores_whose_standard_deviation_is_not_zero_are_dropped():
    assert np.std([0.95] * 7) != 0.0
    assert classify(make_group(0, [0.95] * 7)) == "all_correct"


@examples(100)
@given(rewards())
def test_kept_groups_are_exactly_those_with_an_advantage(values):
    spread = max(values) - min(values)
    kept = classify(make_group(0, values)) == "kept"
    assert kept == (spread > 0)
    if spread > 1e-9:
        assert group_advantages(values).any()
    elif not kept:
        assert not group_advantages(values).any()


@examples(60)
@given(st.lists(st.booleans(), min_size=2, max_size=16))
def test_zero_one_and_plus_minus_one_scores_filter_alike(correct):
    verdicts = {
        classify(make_group(0, [right if c else wrong for c in correct], correct=correct))
        for right, wrong in ((1.0, 0.0), (1.0, -1.0))
    }
    expected = "kept" if 0 < sum(correct) < len(correct) else None
    assert len(verdicts) == 1
    assert (verdicts == {"kept"}) == (expected == "kept")


def test_answers_all_wrong_but_of_different_lengths_are_no_signal():
    """The verdict is about scores before shaping; the shaped rewards would differ."""
    lengths = [4, 8, 10]
    group = make_group(0, [-1.0] * 3, lengths=lengths)
    shaped = [-1.0 + soft_overlong_punishment(n, max_length=10, cache=4) for n in lengths]
    assert group_advantages(shaped).any()
    assert classify(group) == "all_wrong"


def test_one_answer_that_ended_by_itself_makes_a_group_wrong_instead_of_truncated():
    group = make_group(0, WRONG, finish_reason="length")
    ended = replace(group.completions[0], finish_reason="stop")
    assert classify(replace(group, completions=(ended, *group.completions[1:]))) == "all_wrong"


def test_every_reason_to_drop_a_group_has_a_remedy():
    assert set(REMEDIES) == set(get_args(GroupVerdict)) - {"kept"}
