"""Everything in `evaluation_config` acts, or is refused by name before anything starts."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_dapo.algorithm.dapo import DAPOConfig
from rllib_dapo.errors import SettingError
from rllib_dapo.rollout.sampling_job import evaluation_sampling, training_sampling
from rllib_dapo.settings.evaluation import IN_EVALUATION, OTHER_NAMES
from rllib_dapo.settings.run import RunSettings

ENV = "rllib_dapo/Arithmetic-v0"


def config(written: Any = None, **settings: Any) -> DAPOConfig:
    made = DAPOConfig().environment(ENV).update_from_dict(settings)
    return made.update_from_dict({"evaluation_config": written})


def evaluation_of(written: dict[str, Any], **settings: Any) -> Any:
    made = config(written, **settings)
    made.validate()
    return made.get_evaluation_config_object()


def refusal(written: Any = None, **settings: Any) -> SettingError:
    with pytest.raises(SettingError) as caught:
        config(written, **settings).validate()
    return caught.value


@pytest.mark.parametrize(
    ("written", "temperature", "top_p"),
    [
        ({"temperature": 0.7, "top_p": 0.9}, 0.7, 0.9),
        ({"temperature": 0}, 0, 1.0),
        ({"evaluation_temperature": 0.3}, 0.3, 1.0),
        ({"temperature": 0.3, "evaluation_temperature": 0.3}, 0.3, 1.0),
        ({"explore": False}, 0.0, 1.0),
        ({"explore": False, "temperature": 0}, 0.0, 1.0),
        ({"explore": True, "temperature": 0.7}, 0.7, 1.0),
        ({"env_config": {"split": "validation"}}, 1.0, 1.0),
    ],
)
def test_sampling_is_what_was_written(written, temperature, top_p):
    made = config({**written, "max_completion_length": 20, "evaluation_samples": 6})
    made.validate()
    evaluation: Any = made.get_evaluation_config_object()
    sampling = evaluation_sampling(evaluation)
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (temperature, top_p, 20)
    assert evaluation.evaluation_samples == 6
    # Training is what it was, also in RLlib's copy.
    assert training_sampling(made) == training_sampling(DAPOConfig())
    assert (evaluation.temperature, evaluation.top_p) == (1.0, 1.0)


def test_the_fluent_form_of_rllib_means_the_same():
    overrides = DAPOConfig.overrides(explore=False, evaluation_samples=6)
    made = DAPOConfig().environment(ENV).evaluation(evaluation_config=overrides)
    made.validate()
    evaluation: Any = made.get_evaluation_config_object()
    assert (evaluation.evaluation_samples, evaluation.evaluation_temperature) == (6, 0.0)


def test_what_evaluation_overrides_leaves_the_training_alone():
    written = {"env_config": {"split": "validation"}, "max_prompt_length": 99}
    made = config(written, env_config={"terms": 2})
    before = made.to_dict()
    made.get_evaluation_config_object()
    assert made.to_dict() == before
    assert made.env_config == {"terms": 2}


def test_the_length_of_evaluation_may_be_below_the_interval_of_the_soft_punishment():
    assert evaluation_of({"max_completion_length": 8}).max_completion_length == 8


@pytest.mark.parametrize("name", sorted({f.name for f in fields(RunSettings)} - IN_EVALUATION))
def test_every_other_setting_is_refused_by_name(name):
    """Whatever its value: those of the learner, of runners and engines, and when to evaluate."""
    if name in OTHER_NAMES or name == "evaluation_config":
        return
    written = "model" if name == "language_model" else name
    made = config({written: getattr(DAPOConfig(), name)})
    with pytest.raises(SettingError, match=f"evaluation_config.{written}=") as caught:
        made.validate()
    assert caught.value.setting == f"evaluation_config.{written}"


@pytest.mark.parametrize(
    ("written", "name", "hint"),
    [
        ({"lr": 1e-4}, "lr", "belongs to the learner"),
        ({"loss_aggregation": "constant"}, "loss_aggregation", "belongs to the learner"),
        ({"num_env_runners": 2}, "num_env_runners", "of training"),
        ({"callbacks": None}, "callbacks", "of training"),
        ({"explore": False, "temperature": 0.7}, "explore", "keep one of them"),
        ({"explore": "no"}, "explore", "true or false"),
        ({"temperature": 0.7, "evaluation_temperature": 0.6}, "temperature", "keep one of them"),
        ({"temperature": -1}, "evaluation_temperature", "use 0"),
        ({"top_p": 2}, "evaluation_top_p", "up to 1"),
        ({"evaluation_samples": 0}, "evaluation_samples", "1 or more"),
        ({"max_completion_length": 10**6}, "max_completion_length", "more than"),
        ({"temprature": 0.7}, "temprature", "temperature"),
        ({"reward_functions": [{"function": "nowhere:f"}]}, "reward_functions", "nowhere"),
    ],
)
def test_what_cannot_act_is_refused_by_name_with_the_remedy(written, name, hint):
    error = refusal(written)
    assert error.setting == f"evaluation_config.{name}"
    assert hint in str(error)


@pytest.mark.parametrize("written", [[1], "greedy", AlgorithmConfig()])
def test_another_form_than_a_mapping_is_refused(written):
    made = DAPOConfig().environment(ENV)
    made.evaluation_config = written
    with pytest.raises(SettingError, match="overrides"):
        made.validate()


# -- RLlib's own settings of evaluation -------------------------------------------------------

ACTING = {"evaluation_interval": 3, "evaluation_duration": 8, "evaluation_config": {}}


def rllib_names() -> list[str]:
    return sorted(
        name
        for name in vars(AlgorithmConfig())
        if ("evaluation" in name or "offline_eval" in name) and name != "in_evaluation"
    )


@pytest.mark.parametrize("name", rllib_names())
def test_each_setting_of_rllibs_evaluation_acts_or_is_refused(name):
    made = DAPOConfig().environment(ENV)
    default = getattr(AlgorithmConfig(), name)
    setattr(made, name, ACTING.get(name, not default if isinstance(default, bool) else 7))
    if name in ACTING:
        made.validate()
        return
    with pytest.raises(SettingError, match=f"{name}=") as caught:
        made.validate()
    assert caught.value.setting == name


def test_parallel_evaluation_is_refused_with_the_remedy():
    error = refusal(evaluation_parallel_to_training=True, evaluation_num_env_runners=1)
    assert "set it to" in str(error)
