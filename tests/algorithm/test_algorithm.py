"""The whole algorithm around a scripted engine: RLlib, learner, data and state are real."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from learners import parameters
from scripted_engine import NO_MODEL, Script, mixed, right, scripted_runner, solution, wrong

from rllib_dapo import metrics
from rllib_dapo.algorithm.dapo import DAPOConfig
from rllib_dapo.errors import SamplingError, SettingError, TrainingError

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("ray_session")]


@pytest.fixture
def build(tiny_model, request):
    """A function that builds a small algorithm; it is stopped after the test."""

    def build_algorithm(script: Script = mixed, **settings: Any) -> Any:
        small = {
            "model": str(tiny_model),
            "group_size": 4,
            "groups_per_batch": 4,
            "minibatch_size": 8,
            "warmup_iterations": 0,
            "progress": "off",
            **NO_MODEL,
        }
        config = (
            DAPOConfig()
            .environment("rllib_dapo/Arithmetic-v0")
            .env_runners(env_runner_cls=scripted_runner(script))
            .debugging(seed=1)
            .update_from_dict({**small, **settings})
        )
        algorithm = config.build_algo()
        request.addfinalizer(algorithm.stop)
        return algorithm

    return build_algorithm


@pytest.fixture
def problems(tmp_path):
    """A function that writes a data set and returns the settings for it."""

    def write(*sums: str) -> dict[str, Any]:
        path = tmp_path / "problems.jsonl"
        rows = [{"problem": f"{text}=?", "answer": str(solution(text))} for text in sums]
        path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
        return {"env": "rllib_dapo/Math-v0", "env_config": {"dataset": str(path)}}

    return write


def engine(algorithm: Any) -> Any:
    return algorithm.env_runner._engine


def weights(algorithm: Any) -> Any:
    return parameters(algorithm.learner_group._learner).clone()


def rollout(result: dict[str, Any]) -> dict[str, Any]:
    return result[metrics.ROLLOUT]


def learned(result: dict[str, Any]) -> dict[str, Any]:
    return result["learners"]["default_policy"]


def lookup(result: dict[str, Any], key: str) -> Any:
    for part in key.split("/"):
        result = result[part]
    return result


def easy(prompt: str, i: int) -> str:
    """Every group with an odd solution is all right, the others are mixed."""
    return right(prompt, i) if solution(prompt) % 2 else mixed(prompt, i)


# -- One iteration ------------------------------------------------------------------------


def test_an_iteration_samples_updates_and_syncs(build):
    algorithm = build(num_epochs=2)
    before = weights(algorithm)
    result = algorithm.train()
    assert rollout(result)["groups_kept"] == 4
    assert rollout(result)["accuracy"] == 0.5
    assert learned(result)["updates"] == 2 * (16 // 8)
    assert not (weights(algorithm) == before).all()
    algorithm.train()
    assert engine(algorithm).loaded[-3:] == [0, 1, 2]


def test_every_metric_is_in_the_result(build):
    result = build(evaluation_interval=1, evaluation_duration=4).train()
    for metric in metrics.ALL_METRICS:
        assert isinstance(lookup(result, metric.key), (int, float)), metric.key


def test_counters_of_the_whole_run_count_on(build):
    algorithm = build()
    results = [algorithm.train() for _ in range(3)]
    assert [rollout(r)["num_env_steps_sampled"] for r in results] == [16, 16, 16]
    assert [rollout(r)["num_env_steps_sampled_lifetime"] for r in results] == [16, 32, 48]
    assert [rollout(r)["problem_stream_position"] for r in results] == [4, 8, 12]


def test_with_colocate_engines_sleep_while_the_learner_trains(build, monkeypatch):
    """No engine here can really sleep: that takes a GPU."""
    algorithm = build()
    algorithm.config = algorithm.config.copy(copy_frozen=False)
    asleep: list[bool] = [False]
    while_training: list[bool] = []
    update, send = algorithm.learner_group.update, algorithm._weights.send

    def sleep(runners: Any) -> None:
        assert algorithm._pool.in_flight == 0  # it would go on under the new weights
        asleep[0] = True

    def noted_update(**kwargs: Any) -> Any:
        while_training.append(asleep[0])
        return update(**kwargs)

    def waking_send(runners: Any) -> Any:
        asleep[0] = False
        return send(runners)

    monkeypatch.setattr(algorithm._weights, "sleep", sleep)
    monkeypatch.setattr(algorithm._weights, "send", waking_send)
    monkeypatch.setattr(algorithm.learner_group, "update", noted_update)
    for colocate in (False, True):
        algorithm.config.colocate = colocate
        algorithm.train()
        assert while_training[-1] is colocate
        assert asleep == [False]


def test_engines_get_weights_by_weight_sync_only(build, monkeypatch, tmp_path):
    """RLlib would send them whole through the driver, at the beginning and when restoring."""
    algorithm = build()
    assert engine(algorithm).loaded == [0]
    algorithm.train()
    path = algorithm.save_to_path(tmp_path / "checkpoint")
    other = build()
    other.set_state(algorithm.get_state())
    assert engine(other).loaded == [0, 1]
    monkeypatch.setattr(other._weights, "send", lambda runners: pytest.fail("sent"))
    with pytest.raises(pytest.fail.Exception, match="sent"):
        other.restore_from_path(path)
    assert engine(other).loaded == [0, 1]


# -- Dynamic sampling ---------------------------------------------------------------------


@pytest.mark.parametrize(("script", "reason"), [(right, "all_correct"), (wrong, "all_wrong")])
def test_a_reward_that_is_constant_for_ever_is_an_error_with_counts(build, script, reason):
    algorithm = build(script, max_sampling_rounds=3)
    with pytest.raises(SamplingError) as caught:
        algorithm.train()
    assert f"12 {reason}" in str(caught.value)  # 3 times 4: bounded
    assert "kept 0 of 4 groups and has requested 12 problems" in str(caught.value)


def test_skip_goes_on_without_an_update(build):
    algorithm = build(wrong, max_sampling_rounds=2, at_sampling_limit="skip")
    before = weights(algorithm)
    for iteration in (1, 2):
        result = algorithm.train()
        assert rollout(result)["skipped_batch"] == 1
        assert rollout(result)["groups_all_wrong_share"] == 1.0
        assert result["training_iteration"] == iteration
    assert (weights(algorithm) == before).all()


def test_train_on_partial_trains_on_the_groups_there_are(build):
    settings = {"max_sampling_rounds": 1, "at_sampling_limit": "train_on_partial"}
    algorithm = build(easy, **settings)
    result = algorithm.train()
    kept = rollout(result)["groups_kept"]
    assert 0 < kept < 4
    assert learned(result)["updates"] == -(-kept * 4 // 8)
    assert rollout(result)["skipped_batch"] == 0


def test_without_dynamic_sampling_every_group_is_kept(build):
    algorithm = build(easy, dynamic_sampling=False)
    result = algorithm.train()
    assert rollout(result)["groups_sampled"] == rollout(result)["groups_kept"] == 4
    assert rollout(result)["groups_asked"] == 4
    assert rollout(result)["groups_all_correct_share"] > 0


@pytest.mark.parametrize("age", [1, 0])
def test_groups_left_over_are_used_first_while_they_are_fresh(build, age):
    algorithm = build(easy, max_staleness=age)
    results = [rollout(algorithm.train()) for _ in range(8)]
    reused = [r["groups_from_buffer"] for r in results]
    surplus = [r["groups_buffered"] for r in results]
    assert all(r["groups_kept"] == 4 for r in results)
    assert sum(surplus) > 0
    if age:
        assert reused[1:] == surplus[:-1]  # all of them fit into the next batch here
        assert not any(r["groups_expired"] for r in results)
    else:
        assert not any(reused)
        assert [r["groups_expired"] for r in results[1:]] == surplus[:-1]


def asked(algorithm: Any) -> list[str]:
    return engine(algorithm).prompts


@pytest.mark.parametrize("mode", ["finish", "abort", "continue"])
def test_no_problem_is_lost_whatever_happens_to_unfinished_ones(build, problems, mode):
    """Each problem of an epoch is answered once: trained on, counted as dropped, or in hand."""
    sums = [f"{i}+{7 * i % 10}" for i in range(40)]
    algorithm = build(easy, unfinished_groups=mode, max_staleness=9, **problems(*sums))
    trained, dropped, position = 0, 0, 0
    while position < 30:
        result = rollout(algorithm.train())
        trained += result["groups_kept"]
        dropped += result["groups_sampled"] * result["groups_all_correct_share"]
        position = result["problem_stream_position"]
    state = algorithm._rollouts.get_state()
    assert trained + dropped + len(state["buffer"]) + len(state["again"]) == position
    if mode != "abort":  # there a problem may be begun twice
        assert max(Counter(asked(algorithm)).values()) == 1


# -- Data ---------------------------------------------------------------------------------


def test_a_data_set_smaller_than_a_batch_trains(build, problems):
    """Three problems, batches of four: the end of the data falls inside each of them."""
    algorithm = build(**problems("1+2", "3+4", "5+6"))
    for iteration in range(1, 4):
        result = algorithm.train()
        assert rollout(result)["groups_kept"] == 4
        assert rollout(result)["problem_stream_position"] == 4 * iteration
    posed = Counter(engine(algorithm).prompts)
    assert posed == {"1+2=?\n": 4, "3+4=?\n": 4, "5+6=?\n": 4}


def test_prompts_that_are_too_long_are_left_out_and_counted_when_data_are_loaded(
    build, problems, caplog
):
    data = problems("1+2", "1000000+2000000", "3+4")
    with caplog.at_level(logging.WARNING, "rllib_dapo"):
        algorithm = build(max_prompt_length=8, **data)
    assert "1 of 3 problems" in caplog.text
    assert "max_prompt_length=8" in caplog.text
    result = algorithm.train()
    assert rollout(result)["groups_failed"] == 0
    assert set(engine(algorithm).prompts) == {"1+2=?\n", "3+4=?\n"}


def test_data_of_which_nothing_fits_are_refused_before_an_engine_starts(build, problems):
    started = []

    def script(prompt: str, i: int) -> str:
        started.append(prompt)
        return ""

    with pytest.raises(SettingError, match="none of the 2 problems") as caught:
        build(script, max_prompt_length=5, **problems("10+20", "30+40"))
    assert caught.value.setting == "max_prompt_length"
    assert not started


# -- Alarm --------------------------------------------------------------------------------


def test_a_gap_between_engine_and_learner_raises_the_alarm(build):
    """The scripted engine says -1 for every token, whatever the model thinks of it."""
    result = build(max_engine_gap=None).train()
    assert learned(result)["engine_gap_mean"] > 0.1
    with pytest.raises(TrainingError, match=r"max_engine_gap=0\.1"):
        build(max_engine_gap=0.1).train()


# -- Evaluation ---------------------------------------------------------------------------


def test_every_result_carries_the_last_evaluation_and_says_when_it_was_made(build):
    settings = {"evaluation_interval": 2, "evaluation_duration": 3, "evaluation_samples": 2}
    algorithm = build(evaluation_config={"env_config": {"split": "validation"}}, **settings)
    results = [algorithm.train() for _ in range(4)]
    assert [r[metrics.EVALUATION]["iteration"] for r in results] == [0, 2, 2, 4]
    assert [r[metrics.TIME]["evaluate_s"] > 0 for r in results] == [False, True, False, True]
    assert [metrics.INITIAL_EVALUATION in r for r in results] == [True, False, False, False]
    report = results[1][metrics.EVALUATION]
    assert (report["num_problems"], report["k"]) == (3, 2)
    assert (report["accuracy"], report["pass_at_k"]) == (0.5, 1.0)
    # The training stream is not touched, and no held-out problem was trained on.
    assert rollout(results[-1])["problem_stream_position"] == 16
    asked = Counter(engine(algorithm).prompts)
    assert sorted(asked.values()) == [1] * 16 + [3] * 3


def test_before_the_first_evaluation_the_values_are_nan(build):
    settings = {"evaluation_interval": 2, "evaluation_duration": 2}
    algorithm = build(evaluate_before_training=False, **settings)
    first, second = (algorithm.train()[metrics.EVALUATION] for _ in range(2))
    assert first.keys() == second.keys()
    assert all(math.isnan(value) for value in first.values())
    assert second["iteration"] == 2


def test_a_restored_run_carries_the_evaluation_of_its_checkpoint(build, tmp_path):
    settings = {"evaluation_interval": 2, "evaluation_duration": 2}
    algorithm, other = build(**settings), build(**settings)
    results = [algorithm.train() for _ in range(2)]
    other.restore_from_path(algorithm.save_to_path(tmp_path / "checkpoint"))
    assert other.train()[metrics.EVALUATION] == results[-1][metrics.EVALUATION]


def test_a_checkpoint_is_scored_by_an_evaluation_of_its_own_weights_only(build):
    algorithm = build(evaluation_interval=2, evaluation_duration=2)
    scored = []
    for _ in range(3):
        algorithm.train()
        saved = algorithm.save().metrics
        scored.append(saved[f"{metrics.EVALUATION}/accuracy"])
        assert saved[f"{metrics.ROLLOUT}/accuracy"] == 0.5  # as flat keys, where Tune looks
    assert [math.isnan(score) for score in scored] == [True, False, True]


# -- State --------------------------------------------------------------------------------


def test_a_restored_run_goes_on_as_the_uninterrupted_one(build, problems, tmp_path):
    """Cut in the middle of an epoch, with a surplus in hand."""
    data = problems("1+2", "3+4", "5+6", "7+9", "2+2", "8+1", "6+4")
    whole, first, second = (build(easy, **data) for _ in range(3))
    for _ in range(3):
        first.train()
    path = first.save_to_path(tmp_path / "checkpoint")
    second.restore_from_path(path)
    assert (weights(second) == weights(first)).all()
    carried = [group.ref for group in first._rollouts.get_state()["buffer"]]
    assert carried
    assert [group.ref for group in second._rollouts.get_state()["buffer"]] == carried
    assert engine(second).weights_version == 3

    expected = [whole.train() for _ in range(5)]
    got = [second.train() for _ in range(2)]
    assert engine(second).prompts == engine(whole).prompts[-len(engine(second).prompts) :]
    assert (weights(second) == weights(whole)).all()
    for a, b in zip(got, expected[3:], strict=True):
        assert a["training_iteration"] == b["training_iteration"]
        for key in (
            "num_env_steps_sampled_lifetime",
            "problem_stream_position",
            "groups_from_buffer",
        ):
            assert rollout(a)[key] == rollout(b)[key], key


def test_a_running_algorithm_goes_back_to_an_older_checkpoint(build, tmp_path):
    algorithm = build()
    algorithm.train()
    then = weights(algorithm)
    path = algorithm.save_to_path(tmp_path / "checkpoint")
    algorithm.train()
    assert not (weights(algorithm) == then).all()
    algorithm.restore_from_path(path)
    assert (weights(algorithm) == then).all()
    assert engine(algorithm).weights_version == 1
    assert rollout(algorithm.train())["problem_stream_position"] == 8


def test_a_checkpoint_of_other_data_is_refused(build, problems, tmp_path):
    path = build(**problems("1+2", "3+4")).save_to_path(tmp_path / "checkpoint")
    with pytest.raises(SettingError, match="not those of the saved run"):
        build(**problems("1+2", "3+4", "5+6")).restore_from_path(path)


def test_a_checkpoint_alone_is_enough(build, tmp_path):
    from rllib_dapo.algorithm.dapo import DAPO

    algorithm = build()
    algorithm.train()
    path = Path(algorithm.save_to_path(tmp_path / "checkpoint"))
    restored = DAPO.from_checkpoint(path)
    try:
        assert (weights(restored) == weights(algorithm)).all()
        assert engine(restored).weights_version == 1
        assert rollout(restored.train())["problem_stream_position"] == 8
    finally:
        restored.stop()


def test_a_state_handed_over_goes_on_as_the_run_it_is_from(build):
    """`set_state` gives the engines their weights as a checkpoint on disk does."""
    first, second = build(easy), build(easy)
    for _ in range(3):
        first.train()
    assert first._rollouts.get_state()["buffer"]
    second.set_state(first.get_state())
    assert second._pool.weights_version == engine(second).weights_version == 3
    a, b = first.train(), second.train()
    assert (weights(first) == weights(second)).all()
    assert rollout(a)["groups_from_buffer"] == rollout(b)["groups_from_buffer"] > 0
    left = [[g.ref for g in x._rollouts.get_state()["buffer"]] for x in (first, second)]
    assert left[0] == left[1]
