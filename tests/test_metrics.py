"""The registry of metrics, its page in the documentation, and the numbers themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from strategies import make_group

from rllib_dapo import metrics
from rllib_dapo.cli.experiment_file import parse_experiments
from rllib_dapo.errors import ExperimentFileError
from rllib_dapo.rollout.group_filter import BatchProgress
from rllib_dapo.rollout.metrics import batch_metrics, evaluation_metrics, rollout_metrics
from rllib_dapo.rollout.rollouts import RolloutBatch
from rllib_dapo.rollout.token_batch import RewardShaping
from rllib_dapo.settings.run import RunSettings
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
    assert all(metric.meaning for metric in (*metrics.ALL_METRICS, *metrics.NAMED_METRICS))


def test_the_table_of_the_documentation_is_the_registry():
    assert metrics.as_markdown() in PAGE.read_text(encoding="utf-8")


def test_every_row_of_the_table_has_three_cells():
    rows = metrics.as_markdown().splitlines()
    assert len(rows) == len(metrics.ALL_METRICS) + len(metrics.NAMED_METRICS) + 2
    for row in rows:
        assert row.replace("\\|", "").count("|") == 4, row


def test_every_meaning_is_a_sentence_in_the_fields_words():
    for metric in (*metrics.ALL_METRICS, *metrics.NAMED_METRICS):
        assert metric.meaning[0].isupper() or metric.meaning[0] == "1", metric.key
        assert metric.meaning.endswith("."), metric.key
        assert "response" not in metric.meaning, metric.key
        assert metric.unit != "answers", metric.key


@pytest.mark.parametrize(("old", "new"), metrics.RENAMED.items())
def test_a_renamed_metric_is_known_by_its_present_name_only(old, new):
    present = {metric.key.split("/")[-1] for metric in metrics.ALL_METRICS}
    assert new in present
    assert old not in present
    assert metrics.renamed(f"env_runners/{old}") == f"env_runners/{new}"
    assert metrics.renamed(f"env_runners/{new}") is None
    with pytest.raises(ExperimentFileError, match=f"`evaluation/{old}` is now called .*{new}`"):
        parse_experiments(f"x: {{run: DAPO, stop: {{evaluation/{old}: 1}}}}", "x.yaml")


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
    assert values["completion_length_mean"] == 5
    assert values["completion_length_max"] == 9
    assert values["length_penalty_mean"] == pytest.approx(-0.75 / 2)
    assert values["episode_return_mean"] == pytest.approx(-0.75 / 2)
    assert (values["groups_sampled"], values["groups_kept"], values["groups_failed"]) == (3, 1, 1)
    assert values["groups_all_wrong_share"] == 0.5  # of the scored groups
    assert values["groups_all_correct_share"] == 0.0
    assert set(values) <= names(metrics.ROLLOUT_METRICS, metrics.ROLLOUT)


def test_rollout_numbers_of_nothing_are_zero_not_nan():
    values = batch_metrics([], [], {}, SHAPING)
    assert set(values.values()) == {0.0}


def test_components_are_means_over_all_sampled_answers_and_failures_are_counted():
    def having(group: Group, *values: float, weight: float) -> Group:
        completions = [
            replace(c, components={"style": value}, extra_reward=weight * value)
            for c, value in zip(group.completions, values, strict=True)
        ]
        return replace(group, completions=tuple(completions))

    kept = having(make_group(0, [1.0, -1.0], lengths=[2, 9]), 0.5, 1.0, weight=2.0)
    wrong = having(make_group(1, [-1.0, -1.0]), 0.0, 0.5, weight=2.0)
    failed = replace(make_group(2, [], failure="x"), reward_failures={"raised": 2, "timed_out": 1})
    values = batch_metrics(
        [kept, wrong, failed], [kept], {"kept": 1}, SHAPING, ("style", "not_there")
    )
    assert values["reward_components/style"] == 0.5
    assert values["reward_components/not_there"] == 0.0
    assert values["score_mean"] == -0.5  # the environment's alone
    assert values["episode_return_mean"] == pytest.approx((1.0 + 1.0 - 1.0 + 2.0 - 0.75) / 2)
    assert {k: v for k, v in values.items() if k.startswith("reward_failures")} == {
        "reward_failures_raised": 2.0,
        "reward_failures_timed_out": 1.0,
        "reward_failures_bad_value": 0.0,
        "reward_failures_wrong_length": 0.0,
    }
    plain = batch_metrics([kept], [kept], {"kept": 1}, SHAPING)
    assert not [key for key in plain if key.startswith("reward_components")]


def test_how_verdicts_came_about_and_what_was_reflected_on():
    group = make_group(0, [1.0, -1.0, -1.0, -1.0, -1.0])
    ways = ["value", "no_answer", "no_answer", "timed_out", "refused"]
    completions = [
        replace(c, info={"matched_by": way}, reflections=i)
        for i, (c, way) in enumerate(zip(group.completions, ways, strict=True))
    ]
    told = replace(group, completions=tuple(completions))
    values = batch_metrics([told], [told], {"kept": 1}, SHAPING)
    assert values["verdict_no_answer_share"] == 0.4
    assert values["verdict_timed_out_share"] == 0.2
    assert values["verdict_refused_share"] == 0.2
    assert values["reflection_share"] == 0.8
    assert values["reflections_per_completion"] == 2.0
    silent = batch_metrics([group], [group], {"kept": 1}, SHAPING)  # nothing in its info
    assert silent["verdict_no_answer_share"] == silent["reflection_share"] == 0.0


def test_reasons_are_shares_of_the_scored_groups():
    counts = {"kept": 3, "all_wrong": 1, "truncated": 2, "ungraded": 4, "failed": 5}
    values = batch_metrics([], [], counts, SHAPING)
    assert values["groups_all_wrong_share"] == 0.1
    assert values["groups_truncated_share"] == 0.2
    assert values["groups_ungraded_share"] == 0.4


def test_what_was_asked_for_and_what_comes_from_other_batches():
    progress = BatchProgress(
        kept=4, wanted=3, dropped={}, carried=2, asked=9, resolved=6, in_flight=3, limit=30
    )
    groups = tuple(make_group(i, [1.0, -1.0]) for i in range(3))
    batch = RolloutBatch(
        groups=groups,
        sampled=groups,
        counts={"kept": 3},
        progress=progress,
        expired=7,
        surplus=1,
        keep_rate=0.25,
        seconds=2.0,
        busy_share=0.5,
    )
    values = rollout_metrics(batch, RunSettings())
    expected = {
        "groups_asked": 9.0,
        "groups_in_flight": 3.0,
        "groups_from_buffer": 2.0,
        "groups_buffered": 1.0,
        "groups_expired": 7.0,
        "keep_rate": 0.25,
        "engines_busy_share": 0.5,
        "tokens_per_s": values["tokens_sampled"] / 2.0,
        "skipped_batch": 0.0,
    }
    assert expected.items() <= values.items()
    assert set(values) <= names(metrics.ROLLOUT_METRICS, metrics.ROLLOUT)
    for used in (groups[:1], ()):  # the buffer held more than the batch has room for
        fewer = rollout_metrics(replace(batch, groups=used), RunSettings())
        assert fewer["groups_from_buffer"] == len(used)
        assert fewer["skipped_batch"] == float(not used)


def test_evaluation_numbers_are_those_of_k_answers_to_each_problem():
    groups = [
        answering(make_group(0, [1.0, -1.0, 1.0]), "7", "8", "7.0"),  # most are right
        answering(make_group(1, [-1.0, 1.0, -1.0]), "5", "6", "5"),  # most agree on 5
        answering(make_group(2, [-1.0, -1.0, -1.0]), "1", "2", "3"),
        make_group(3, [], failure="broken"),
    ]
    values = evaluation_metrics(groups)
    assert values["accuracy"] == pytest.approx(3 / 12)  # the failed one is three wrong ones
    assert values["pass_at_k"] == pytest.approx(2 / 4)
    assert values["majority_at_k"] == pytest.approx(1 / 4)
    assert (values["num_problems"], values["problems_failed"], values["k"]) == (4, 1, 3)
    expected = names(metrics.EVALUATION_METRICS, metrics.EVALUATION)
    assert set(values) | {"iteration"} == expected  # the algorithm counts the iterations


def test_truncated_answers_are_counted():
    group = make_group(0, [1.0, -1.0], finish_reason="length")
    assert evaluation_metrics([group])["truncated_share"] == 1.0
