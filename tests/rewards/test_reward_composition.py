"""The reward as a weighted sum: scalar references, policies on failure, and the runner."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import hostile_rewards
import numpy as np
import pytest
from hostile_rewards import entries
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, finite, make_group

from rllib_dapo.algorithm.dapo import DAPOConfig
from rllib_dapo.errors import RewardError, SettingError
from rllib_dapo.losses.advantages import group_advantages
from rllib_dapo.rewards.composition import (
    PlayedCompletion,
    RewardComposer,
    check_rewards,
    component_names,
    keeps_format,
)
from rllib_dapo.rewards.functions import load_reward_functions
from rllib_dapo.rollout.group_filter import classify
from rllib_dapo.rollout.token_batch import RewardShaping, make_token_batch
from rllib_dapo.types import Completion, Group

OFF = RewardShaping(
    max_length=10, overlong_cache=None, overlong_filtering=False, normalize_std=False
)


@pytest.fixture(autouse=True)
def _nothing_left_behind():
    with hostile_rewards.clean():
        yield


def composer(*names: str, weight: float = 1.0, **options: Any) -> RewardComposer:
    return RewardComposer(load_reward_functions(entries(*names, weight=weight)), **options)


def played(*scores: float, info: dict[str, Any] | None = None, reason: Any = "stop") -> Any:
    group = make_group(0, list(scores), finish_reason=reason)
    return [
        PlayedCompletion("1+2=?", c, {"correct": c.correct, **(info or {})})
        for c in group.completions
    ]


def composed_group(scores: list[float], extra: list[float]) -> Group:
    """A group whose extra rewards are given."""
    group = make_group(0, scores)
    pairs = zip(group.completions, extra, strict=True)
    return replace(group, completions=tuple(replace(c, extra_reward=e) for c, e in pairs))


# -- The sum ------------------------------------------------------------------------------


def test_without_components_the_reward_is_the_score():
    result = RewardComposer().compose(played(1.0, -1.0))
    assert [(c.components, c.extra_reward) for c in result.completions] == [({}, 0.0)] * 2
    assert (result.failures, result.failure) == ({}, None)


def test_a_reward_is_the_weighted_sum_of_its_components():
    functions = load_reward_functions(
        [
            {"function": "hostile_rewards:numpy_scalar", "weight": 3.0},
            {"function": "hostile_rewards:boolean", "weight": -0.25, "name": "agrees"},
        ]
    )
    result = RewardComposer(functions, format_reward=0.1).compose(played(1.0, -1.0))
    first, second = result.completions
    assert first.components == {"format": 1.0, "numpy_scalar": 0.5, "agrees": 1.0}
    assert second.components == {"format": 1.0, "numpy_scalar": 0.5, "agrees": 0.0}
    assert first.extra_reward == pytest.approx(0.1 + 3.0 * 0.5 - 0.25)
    assert second.extra_reward == pytest.approx(0.1 + 3.0 * 0.5)
    assert first.score == 1.0  # the environment's, untouched


def test_a_weight_of_zero_only_logs():
    (first, _) = composer("letters", weight=0.0).compose(played(1.0, -1.0)).completions
    assert (first.components, first.extra_reward) == ({"letters": 1.0}, 0.0)


@examples(60)
@given(st.lists(st.tuples(finite(), finite()), min_size=2, max_size=8))
def test_advantages_are_those_of_the_sums(pairs):
    scores, extra = [list(part) for part in zip(*pairs, strict=True)]
    group = composed_group(scores, extra)
    sums = [score + more for score, more in pairs]
    assert group.rewards.tolist() == sums
    batch = make_token_batch([group], OFF)
    expected = [r - math.fsum(sums) / len(sums) for r in sums] if len(set(sums)) > 1 else 0.0
    assert batch.advantages == pytest.approx(expected, abs=1e-5)


# -- The format ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "reason", "value"),
    [
        ({"matched_by": "value", "extracted": "3"}, "stop", 1.0),
        ({"matched_by": "different", "extracted": "4"}, "stop", 1.0),
        ({"matched_by": "no_answer", "extracted": None}, "stop", 0.0),
        ({"matched_by": "value", "extracted": "3"}, "length", 0.0),
        ({"extracted": "4"}, "stop", 1.0),
        ({"extracted": None}, "stop", 0.0),
        ({}, "stop", 1.0),  # an environment that does not tell
        ({}, "length", 0.0),
    ],
)
def test_the_format_is_an_answer_found_in_a_text_that_ended_by_itself(info, reason, value):
    assert keeps_format(played(-1.0, info=info, reason=reason)[0]) == value


# -- Failures by policy -------------------------------------------------------------------


def test_an_error_names_the_function_what_it_did_and_the_remedy():
    with pytest.raises(RewardError) as caught:
        composer("raises", on_failure="error").compose(played(1.0, -1.0))
    assert "`raises` raised ValueError: no reward today" in str(caught.value)
    assert "reward_failure" in str(caught.value)


def test_a_dropped_group_says_why():
    result = composer("letters", "gives_none").compose(played(1.0, -1.0))
    assert result.failure == "reward function `gives_none` returned None, not a number"
    assert result.failures == {"bad_value": 2}


def test_a_group_that_is_lost_costs_no_further_calls():
    composer("gives_none", "everything").compose(played(1.0, -1.0))
    assert hostile_rewards.CALLS == []
    composer("gives_none", "everything", on_failure="zero").compose(played(1.0, -1.0))
    assert len(hostile_rewards.CALLS) == 2


def test_zero_stands_for_the_missing_value_alone():
    result = composer("only_wrong_raise", "letters", weight=2.0, on_failure="zero").compose(
        played(1.0, -1.0)
    )
    assert [c.components for c in result.completions] == [
        {"only_wrong_raise": 1.0, "letters": 1.0},
        {"only_wrong_raise": 0.0, "letters": 1.0},
    ]
    assert [c.extra_reward for c in result.completions] == [4.0, 2.0]
    assert (result.failures, result.failure) == ({"raised": 1}, None)


def test_hanging_calls_are_an_error_under_every_policy():
    patient = composer("sleeps", on_failure="zero", timeout_s=0.05)
    for _ in range(4):
        assert patient.compose(played(1.0, -1.0)).failures == {"timed_out": 2}
    with pytest.raises(RewardError, match="still run"):
        patient.compose(played(1.0, -1.0))


# -- Which groups carry a signal ----------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "extra", "verdict"),
    [
        ([1.0, -1.0], [0.0, 0.5], "kept"),
        ([-1.0, -1.0], [0.0, 0.5], "all_wrong"),  # however well it is formatted
        ([1.0, 1.0], [0.0, 0.5], "all_correct"),
        ([1.0, -1.0], [-1.0, 1.0], "equal_scores"),  # the rewards are equal: no advantage
        ([1.0, -1.0], [-1.0, 1.0 + 2**-50], "kept"),  # exactly equal, not nearly
        ([1.0, 0.0, 1.0], [0.95, 1.95, 0.95], "equal_scores"),
        ([1.0, -1.0], [math.nan, 0.0], "failed"),
    ],
)
def test_scores_decide_and_equal_rewards_never_train(scores, extra, verdict):
    group = composed_group(scores, extra)
    assert classify(group) == verdict
    if verdict == "equal_scores":
        assert not group_advantages(group.rewards).any()


# -- Settings -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"format_reward": math.inf}, "format_reward"),
        ({"reward_timeout_s": 0.0}, "reward_timeout_s"),
        ({"reward_timeout_s": math.inf}, "reward_timeout_s"),
        ({"reward_functions": entries("no_such")}, "reward_functions"),
    ],
)
def test_impossible_settings_are_refused(settings, setting):
    with pytest.raises(SettingError) as caught:
        check_rewards(DAPOConfig().update_from_dict(settings))
    assert caught.value.setting == setting


def test_the_components_of_a_configuration():
    config = DAPOConfig()
    assert component_names(config) == ()
    config.update_from_dict({"format_reward": 0.1, "reward_functions": entries("letters")})
    check_rewards(config)
    assert component_names(config) == ("format", "letters")


def test_what_a_completion_holds_by_default_is_nothing():
    plain = Completion(np.array([3]), np.array([-1.0]), "3", "stop", 1.0, True)
    assert (plain.components, plain.extra_reward, plain.reflections) == ({}, 0.0, 0)
