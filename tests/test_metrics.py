"""The registry of metrics, its page in the documentation, and the numbers themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from strategies import make_group

from rllib_dapo import metrics
from rllib_dapo.rollout_metrics import batch_metrics, evaluation_metrics
from rllib_dapo.sampling.token_batch import RewardShaping
from rllib_dapo.types import Group

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"
SHAPING = RewardShaping(
    max_length=10, overlong_cache=4, overlong_filtering=False, normalize_std=True
)


def names(registry: tuple[metrics.Metric, ...], prefix: str) -> set[str]:
    return {metric.key.removeprefix(f"{prefix}/") for metric in registry}


def answering(group: Group, *extracted: str) -> Group:
    completions = [
        replace(c, info={"extracted": text})
        for c, text in zip(group.completions, extracted, strict=True)
    ]
    return replace(group, completions=tuple(completions))


# -- The registry -------------------------------------------------------------------------


def test_keys_are_unique_and_every_metric_has_a_meaning():
    keys = [metric.key for metric in metrics.ALL_METRICS]
    assert len(set(keys)) == len(keys)
    assert all(metric.meaning for metric in metrics.ALL_METRICS)


def test_the_table_of_the_documentation_is_the_registry():
    assert metrics.as_markdown() in PAGE.read_text(encoding="utf-8")


def test_every_row_of_the_table_has_three_cells():
    rows = metrics.as_markdown().splitlines()
    assert len(rows) == len(metrics.ALL_METRICS) + 2
    for row in rows:
        assert row.replace("\\|", "").count("|") == 4, row


# -- The numbers --------------------------------------------------------------------------


def test_rollout_numbers_tell_sampled_from_trained_answers():
    kept = make_group(0, [1.0, -1.0], lengths=[2, 9])
    wrong = make_group(1, [-1.0, -1.0], lengths=[4, 5])
    failed = make_group(2, [1.0, 1.0], failure="broken")
    counts = {"kept": 1, "all_wrong": 1, "failed": 1}
    values = batch_metrics([kept, wrong, failed], [kept], counts, SHAPING)
    assert values["accuracy"] == 0.25
    assert values["score_mean"] == -0.5
    assert values["num_env_steps_sampled"] == 4
    assert values["tokens_sampled"] == 20
    assert values["response_length_mean"] == 5
    assert values["response_length_max"] == 9
    assert values["length_penalty_mean"] == pytest.approx(-0.75 / 2)
    assert values["episode_return_mean"] == pytest.approx(-0.75 / 2)
    assert (values["groups_sampled"], values["groups_kept"], values["groups_failed"]) == (3, 1, 1)
    assert values["groups_all_wrong_share"] == 0.5  # of the scored groups
    assert values["groups_all_correct_share"] == 0.0
    assert set(values) <= names(metrics.ROLLOUT_METRICS, metrics.ROLLOUT)


def test_rollout_numbers_of_nothing_are_zero_not_nan():
    values = batch_metrics([], [], {}, SHAPING)
    assert set(values.values()) == {0.0}


def test_evaluation_numbers_are_those_of_k_answers_to_each_problem():
    groups = [
        answering(make_group(0, [1.0, -1.0, 1.0]), "7", "8", "7.0"),  # most are right
        answering(make_group(1, [-1.0, 1.0, -1.0]), "5", "6", "5"),  # most agree on 5
        answering(make_group(2, [-1.0, -1.0, -1.0]), "1", "2", "3"),
        make_group(3, [], failure="broken"),
    ]
    values = evaluation_metrics(groups)
    assert values["accuracy"] == pytest.approx(3 / 9)
    assert values["pass_at_k"] == pytest.approx(2 / 3)
    assert values["majority_at_k"] == pytest.approx(1 / 3)
    assert (values["num_problems"], values["k"]) == (3, 3)
    assert set(values) == names(metrics.EVALUATION_METRICS, metrics.EVALUATION)


def test_truncated_answers_are_counted():
    group = make_group(0, [1.0, -1.0], finish_reason="length")
    assert evaluation_metrics([group])["truncated_share"] == 1.0
