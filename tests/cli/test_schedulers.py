"""Schedulers, metrics that may be missing, and the settings that schedulers change."""

from __future__ import annotations

import math
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle, tune
from ray.tune.schedulers import TrialScheduler

from rllib_dapo import metrics
from rllib_dapo.cli.check import validate
from rllib_dapo.cli.experiment_file import Experiment
from rllib_dapo.cli.schedulers import build_scheduler, check_metric
from rllib_dapo.errors import ExperimentFileError

METRIC = "evaluation/accuracy"
SCHEDULERS: dict[str, dict[str, Any]] = {
    "asynchyperband": {"max_t": 9},
    "medianstopping": {},
    "hyperband": {"max_t": 9},
    "pbt": {"hyperparam_mutations": {"lr": [1e-4, 1e-3]}, "perturbation_interval": 1},
}


def experiment(**keys: Any) -> Experiment:
    return Experiment("one", **{"metric": METRIC, "mode": "max", **keys})


def scheduler(name: str, arguments: dict[str, Any]) -> Any:
    one = experiment(
        scheduler=name,
        scheduler_config={"time_attr": "training_iteration", **arguments},
    )
    made = build_scheduler(one)
    made.set_search_properties(METRIC, "max")
    return made


@pytest.mark.parametrize("missing", [{}, {METRIC: math.nan}, {METRIC: None}, {METRIC: "text"}])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_result_without_the_metric_is_skipped(name, missing):
    made = scheduler(name, SCHEDULERS[name])
    result = {"training_iteration": 1, "time_total_s": 1.0, **missing}
    # The trial is never looked at: it was not even added.
    assert made.on_trial_result(None, SimpleNamespace(), result) == TrialScheduler.CONTINUE


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_stays_what_tune_knows(name):
    made = pickle.loads(cloudpickle.dumps(scheduler(name, SCHEDULERS[name])))  # noqa: S301
    kinds = tune.schedulers.SCHEDULER_IMPORT
    assert isinstance(made, kinds[name])
    assert type(made).__name__ == kinds[name].__name__


def test_a_result_with_the_metric_is_compared():
    made = scheduler("asynchyperband", {"max_t": 3, "grace_period": 1})
    trials = [SimpleNamespace(trial_id=str(i)) for i in range(4)]
    decisions = []
    for trial, value in zip(trials, (0.9, 0.8, 0.1, 0.0), strict=True):
        made.on_trial_add(None, trial)
        result = {"training_iteration": 1, METRIC: value}
        decisions.append(made.on_trial_result(None, trial, result))
    assert decisions[0] == TrialScheduler.CONTINUE
    assert decisions[-1] == TrialScheduler.STOP


# -- Metrics ------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [m.key for m in metrics.ALL_METRICS])
def test_every_metric_of_the_documentation_can_be_compared(metric):
    check_metric(experiment(metric=metric, config={"evaluation_interval": 5}))


@pytest.mark.parametrize(
    ("metric", "interval", "words"),
    [
        ("evaluation/accuracy", None, "set `evaluation_interval`"),
        ("initial_evaluation/k", 0, "set `evaluation_interval`"),
        ("evaluation/acuracy", 5, "did you mean `evaluation/accuracy`?"),
        ("accuracy", 5, "did you mean `evaluation/accuracy`?"),
        ("grad_norm", 5, "did you mean `learners/default_policy/grad_norm`?"),
        ("env_runners/groups_reused", 5, "is now called `env_runners/groups_from_buffer`"),
    ],
)
@pytest.mark.parametrize("key", ["metric", "checkpoint_config"])
def test_a_metric_that_is_never_reported_is_refused(metric, interval, words, key):
    keys: dict[str, Any] = {"metric": metric}
    if key == "checkpoint_config":
        keys = {"metric": None, key: {"checkpoint_score_attribute": metric}}
    with pytest.raises(ExperimentFileError) as caught:
        check_metric(experiment(config={"evaluation_interval": interval}, **keys))
    assert words in str(caught.value)
    assert metric in str(caught.value)


@pytest.mark.parametrize("metric", ["my/own", "custom_score", "time_total_s"])
def test_a_metric_of_the_user_is_left_to_tune(metric):
    check_metric(experiment(metric=metric))


# -- Settings that a scheduler changes ----------------------------------------------------


def mutating(tiny_model: Any, **mutations: Any) -> Experiment:
    config = {
        "env": "rllib_dapo/Arithmetic-v0",
        "model": str(tiny_model),
        "group_size": 4,
        "groups_per_batch": 4,
        "minibatch_size": 8,
        "evaluation_interval": 1,
    }
    return experiment(
        config=config, scheduler="pbt", scheduler_config={"hyperparam_mutations": mutations}
    )


@pytest.mark.parametrize(
    "mutations",
    [
        {"lr": [1e-4, 1e-3], "weight_decay": {"tune.uniform": [0.0, 0.2]}},
        {"adam_beta2": [0.9, 0.99], "temperature": {"tune.uniform": [0.8, 1.2]}},
        {"clip_low": tune.uniform(0.1, 0.3), "clip_high": lambda: 0.3},
        {"minibatch_size": [4, 8, 16]},
        {"env_config": {"max_operand": [5, 9]}},
    ],
)
def test_what_a_running_trial_can_take_over_passes(tiny_model, mutations):
    assert validate(mutating(tiny_model, **mutations))


@pytest.mark.parametrize(
    ("mutations", "words"),
    [
        ({"wieght_decay": [0.1]}, "Did you mean `weight_decay`?"),
        ({"clip_low": [0.2, 1.5]}, "clip_low=1.5"),
        ({"clip_low": {"tune.uniform": [0.1, 1.5]}}, "clip_low=1.5"),
        ({"clip_low": {"tune.unifrom": [0.1, 0.5]}}, "did you mean tune.uniform?"),
        ({"minibatch_size": [8, 7]}, "minibatch_size=7"),
        ({"lr": 0.1}, "0.1 gives no values"),
        ({"lr": []}, "[] gives no values"),
        ({"lr": {"grid_search": [0.1]}}, "gives no values"),
        ({"lora_rank": [4, 8]}, "`lora_rank` cannot change in a running trial"),
        ({"num_env_runners": [1, 2]}, "`num_env_runners` cannot change in a running trial"),
        ({"seed": [1, 2]}, "`seed` cannot change in a running trial"),
        ({"model": ["embedded"]}, "`model` cannot change in a running trial"),
        ({"env_config": {"dataset": ["a", "b"]}}, "`env_config.dataset` cannot change"),
    ],
)
def test_what_no_running_trial_could_take_over_is_refused_by_name(tiny_model, mutations, words):
    with pytest.raises(ExperimentFileError) as caught:
        validate(mutating(tiny_model, **mutations))
    assert words in str(caught.value)
    assert next(iter(mutations)) in str(caught.value)


def test_a_multiplied_value_stays_within_its_range(tiny_model):
    made = build_scheduler(
        mutating(
            tiny_model,
            clip_low={"tune.uniform": [0.1, 0.9]},
            env_config={"max_operand": {"tune.randint": [5, 10]}},
        )
    )
    for low, operand in ((0.05, 2), (0.5, 7), (1.08, 12)):
        config = made._custom_explore_fn(
            {"clip_low": low, "env_config": {"max_operand": operand}, "lr": 3.0}
        )
        assert config["clip_low"] == min(max(low, 0.1), 0.9)
        assert config["env_config"]["max_operand"] == min(max(operand, 5), 9)
        assert config["lr"] == 3.0
