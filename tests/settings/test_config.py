"""Impossible settings are refused before anything starts, by name and with a remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml

from rllib_dapo.algorithm.dapo import DAPOConfig
from rllib_dapo.errors import DataError, SettingError
from rllib_dapo.settings import RENAMED, RunSettings, setting_names
from rllib_dapo.settings.checks import check_value, word_for
from rllib_dapo.settings.names import setting_kinds

NAN = float("nan")


def config(**overrides: Any) -> DAPOConfig:
    made = DAPOConfig().environment("rllib_dapo/Arithmetic-v0")
    return made.update_from_dict(overrides)


def assert_possible(**overrides: Any) -> None:
    """The settings pass all checks, and the checks leave them as they are."""
    made = config(**overrides)
    made.validate()
    assert {name: getattr(made, name) for name in overrides} == overrides


def test_the_defaults_are_possible():
    made = config()
    made.validate()
    defaults = vars(RunSettings()) | {"env": "rllib_dapo/Arithmetic-v0"}
    assert {name: getattr(made, name) for name in defaults} == defaults


# -- Refused by validate() ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("group_size", 1, "use 2 or more"),
        ("groups_per_batch", 0, "use 1 or more"),
        ("max_sampling_rounds", 0, "use 1 or more"),
        ("max_staleness", -1, "use 0"),
        ("async_level", 1, "set `num_env_runners` to 1 or more"),
        ("runner_timeout_s", 0.0, "seconds above 0"),
        ("runner_restart_timeout_s", -1.0, "seconds above 0"),
        ("max_problem_attempts", 0, "use 1 or more"),
        ("tensor_parallel_size", 0, "use 1 or more"),
        ("sync_check_interval", -1, "use 0 for no check"),
        ("sync_check_tolerance", 0.0, "nats above 0"),
        ("colocate", True, "set them (fractions such as 0.5 share one GPU)"),
        ("soft_overlong_cache", 0, "switch it off"),
        ("soft_overlong_cache", -1, "switch it off"),
        ("soft_overlong_cache", 65, "lower soft_overlong_cache"),
        ("max_completion_length", 0, "use 1 token or more"),
        ("max_prompt_length", 0, "use 1 token or more"),
        ("max_completion_length", 449, "lower one"),
        ("max_prompt_length", 449, "lower one"),
        ("temperature", 0.0, "above 0"),
        ("temperature", -1.0, "above 0"),
        ("temperature", NAN, "above 0"),
        ("top_p", 0.9, "use 1.0 in training"),
        ("evaluation_top_p", 0.0, "above 0"),
        ("evaluation_temperature", -0.1, "use 0"),
        ("evaluation_samples", 0, "use 1 or more"),
        ("clip_low", 0.0, "between 0 and 1"),
        ("clip_low", 1.0, "between 0 and 1"),
        ("clip_high", -0.1, "use 0 or more"),
        ("clip_high", NAN, "use 0 or more"),
        ("dual_clip", 1.0, "above 1"),
        ("entropy_coeff", NAN, "use a number"),
        ("minibatch_size", 0, "use 1 to 512"),
        ("minibatch_size", 1024, "use 1 to 512"),
        ("minibatch_size", None, "use 1 to 512"),
        ("minibatch_size", 100, "must divide the 512 completions"),
        ("num_learners", 129, "at most minibatch_size"),
        ("num_learners", -1, "use 0"),
        ("num_env_runners", -1, "use 0"),
        ("num_epochs", 0, "use 1 or more"),
        ("lr", -1e-4, "use one number of 0 or more"),
        ("lr", NAN, "use one number of 0 or more"),
        ("seed", -1, "use 0 or more"),
        ("warmup_iterations", -1, "use 0 for none"),
        ("weight_decay", -0.1, "use 0 for none"),
        ("adam_beta2", 1.0, "below 1"),
        ("grad_clip", 0.0, "above 0"),
        ("grad_clip_by", "value", "global_norm"),
        ("max_tokens_per_microbatch", 0, "use 1 token or more"),
        ("max_skipped_updates", 0, "use 1 or more"),
        ("engine_cpu_threads", 0, "use 1 or more"),
        ("learner_cpu_threads", 0, "use 1 or more"),
        ("kv_cache_gib", 0.0, "above 0"),
        ("max_engine_gap", -1e-3, "use 0"),
        ("kl_coeff", -0.1, "use 0 for no reference policy"),
        ("importance_sampling", "token", "set old_logprobs='learner'"),
        ("importance_mask_above", 3.0, "set old_logprobs='learner'"),
        ("importance_mask_above", 1.0, "above 1"),
        ("importance_cap", 0.5, "use 1 or more"),
        ("importance_cap", NAN, "use 1 or more"),
        ("lr_end_factor", 1.5, "from 0 to 1"),
        ("lr_end_factor", NAN, "from 0 to 1"),
        ("lr_schedule", "linear", "use one of constant, cosine"),
        ("lora_alpha", 0.0, "above 0"),
        ("format_reward", float("inf"), "finite number up to"),
        ("reward_timeout_s", float("inf"), "finite number of seconds"),
        ("evaluation_interval", -1, "null for no evaluation"),
        ("evaluation_duration", 0, "held-out problems, 1 or more"),
        ("evaluation_duration", "auto", "held-out problems, 1 or more"),
        ("num_gpus_per_env_runner", -0.5, "use 0 or more"),
        ("num_cpus_per_learner", "all", "use `auto`, or a number"),
        ("shard_model", True, "set `num_learners` to 2 or more"),
        ("lora_rank", 0, "at least 1"),
        ("dtype", "float33", "use one of"),
        ("prompt_template", "boxd", "did you mean 'boxed'"),
        ("chat", "always", "no chat template"),
        ("env", None, "name an environment"),
        ("env", "rllib_dapo/Arithmetik-v0", "did you mean 'rllib_dapo/Arithmetic-v0'"),
        ("model", "./no/such/folder", "there is no such folder"),
        ("model", "no-such-model-anywhere", "cannot be loaded"),
    ],
)
def test_an_impossible_setting_is_refused_with_name_value_and_remedy(name, value, remedy):
    # Both lengths make up the context; the message is about the one that is written last.
    named = "max_completion_length" if (name, value) == ("max_prompt_length", 449) else name
    with pytest.raises(SettingError) as caught:
        config(**{name: value}).validate()
    message = str(caught.value)
    assert caught.value.setting == named
    assert named in message
    assert str(value) in message
    assert remedy in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clip_high", "0.28"),
        ("clip_high", True),
        ("group_size", 16.0),
        ("group_size", "16"),
        ("group_size", None),
        ("dynamic_sampling", 1),
        ("async_level", 2),
        ("async_level", True),
        ("unfinished_groups", "drop"),
        ("weight_sync", "ipc"),
        ("dynamic_sampling", "yes"),
        ("loss_aggregation", "token"),
        ("ratio_level", "group"),
        ("kl_estimator", "k4"),
        ("old_logprobs", "vllm"),
        ("compute_dtype", "float16"),
        ("packing", "auto"),
        ("lora_target_modules", [1]),
        ("at_sampling_limit", "retry"),
        ("chat", "sometimes"),
        ("engine_kwargs", []),
        ("few_shot", [{"problem": 1, "answer": "2"}]),
        ("model", 7),
        ("lr", "1e-4"),
        ("lr", True),
        ("lr", [[0, 1e-4], [100, 0.0]]),
        ("minibatch_size", "128"),
        ("minibatch_size", True),
        ("num_epochs", "1"),
        ("num_learners", "2"),
        ("seed", "x"),
        ("grad_clip", "1"),
        ("num_cpus_per_env_runner", "2"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(name, value):
    with pytest.raises(SettingError) as caught:
        config(**{name: value}).validate()
    assert caught.value.setting == name
    assert f"{name}={value!r}: " in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("clip_low", "0.2", "it must be a valid number; use a number between 0 and 1; the paper"),
        ("dynamic_sampling", "yes", "use true or false"),
        ("loss_aggregation", "token", "use one of token_mean, sequence_mean, constant, group"),
        ("kl_estimator", True, "use one of k1, k2, k3"),
        ("system_prompt", False, "it must be a valid string; YAML reads on, off, yes and no as"),
        ("few_shot", [{"problem": 1}], "few_shot[0]['problem'] must be a valid string"),
        ("lora_target_modules", 7, "use all-linear, or a list of module names"),
    ],
)
def test_the_remedy_stands_behind_a_wrong_type_too(name, value, remedy):
    with pytest.raises(SettingError) as caught:
        config(**{name: value}).validate()
    assert remedy in str(caught.value)


@pytest.mark.parametrize(("written", "word"), [("off", "off"), ("on", "on"), ('"off"', "off")])
def test_on_and_off_need_no_quotes_in_yaml(written, word):
    """YAML reads them as booleans."""
    made = config(**yaml.safe_load(f"progress: {written}"))
    made.validate()
    assert made.progress == word


def test_switches_stay_booleans_where_on_and_off_are_no_words():
    made = config(**yaml.safe_load("{dynamic_sampling: off, packing: on}"))
    assert (made.dynamic_sampling, made.packing) == (False, True)


def test_of_two_wrong_settings_the_one_that_the_other_depends_on_is_named():
    with pytest.raises(SettingError, match="group_size=None"):
        config(group_size=None, minibatch_size=None).validate()


def test_a_cosine_must_end_after_the_warm_up():
    cosine = {"lr_schedule": "cosine", "warmup_iterations": 20}
    with pytest.raises(SettingError, match="after warmup_iterations=20"):
        config(lr_decay_iterations=20, **cosine).validate()
    with pytest.raises(SettingError, match=r"lr_decay_iterations=None: .*lr_schedule='cosine'"):
        config(**cosine).validate()
    assert_possible(lr_decay_iterations=21, **cosine)


def test_adapters_on_layers_that_do_not_exist_are_refused_with_those_that_do():
    with pytest.raises(SettingError, match=r"lora_target_modules=.*q_prj.*'q_proj'") as caught:
        config(lora_rank=4, lora_target_modules=["q_prj"]).validate()
    assert caught.value.setting == "lora_target_modules"


@pytest.mark.parametrize(("size", "near"), [(24, 16), (8, 16), (40, 32)])
def test_minibatches_of_groups_hold_whole_groups(size, near):
    sizes = {"group_size": 16, "groups_per_batch": 15}
    with pytest.raises(SettingError, match=f"minibatch_size={size}.*such as {near}"):
        config(**sizes, minibatch_by="group", minibatch_size=size).validate()


def test_the_mean_of_each_group_needs_whole_groups_in_a_minibatch():
    mean = {"loss_aggregation": "group_token_mean"}
    with pytest.raises(SettingError, match="set `minibatch_by: group`") as caught:
        config(**mean).validate()
    assert caught.value.setting == "loss_aggregation"
    assert_possible(**mean, minibatch_by="group")
    assert_possible(**mean, minibatch_size=512)


def test_numpy_numbers_are_numbers():
    """Tune's samplers hand them over."""
    assert_possible(clip_high=np.float64(0.3), lr=np.float64(1e-4), group_size=np.int64(16))
    with pytest.raises(SettingError, match="clip_high"):
        config(clip_high=np.float64(-0.3)).validate()


@pytest.mark.parametrize("cache", [0, 65])
def test_nothing_is_asked_of_the_soft_punishment_while_it_is_off(cache):
    assert_possible(soft_overlong_punishment=False, soft_overlong_cache=cache)
    with pytest.raises(SettingError, match="soft_overlong_cache"):
        config(soft_overlong_punishment=True, soft_overlong_cache=cache).validate()


@pytest.mark.parametrize("cache", [1, 64])
def test_the_soft_punishment_may_take_up_to_the_whole_completion(cache):
    assert_possible(soft_overlong_cache=cache)


def test_lengths_that_just_fit_the_context_are_possible():
    assert_possible(max_prompt_length=64, max_completion_length=448)


def test_tf2_is_refused():
    with pytest.raises(SettingError, match="torch only") as caught:
        config().framework("tf2").validate()
    assert caught.value.setting == "framework"


def test_a_missing_data_file_is_refused():
    missing = "/no/such/folder/problems.jsonl"
    with pytest.raises(DataError, match=missing):
        DAPOConfig().environment("rllib_dapo/Math-v0", env_config={"dataset": missing}).validate()


@pytest.mark.parametrize(
    ("given", "setting", "hint"),
    [
        ({"env_config": {"term": 3}}, "env_config.term", "did you mean 'terms'"),
        (
            {"evaluation_config": {"env_config": {"splt": "validation"}}},
            "evaluation_config.env_config.splt",
            "did you mean 'split'",
        ),
        (
            {"evaluation_config": {"env_confg": {}}},
            "evaluation_config.env_confg",
            "Did you mean `env_config`",
        ),
        (
            {"evaluation_config": {"group_size": 1}},
            "evaluation_config.group_size",
            "evaluation_samples",
        ),
    ],
)
def test_nested_settings_are_checked_too(given, setting, hint):
    with pytest.raises(SettingError) as caught:
        config(**given).validate()
    assert caught.value.setting == setting
    assert hint in str(caught.value)


# -- Unknown keys -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("clip_hgh", "clip_high"),
        ("grp_size", "group_size"),
        ("soft_overlong_cach", "soft_overlong_cache"),
        ("minibatchsize", "minibatch_size"),
        ("language_modell", "language_model"),
    ],
)
def test_update_from_dict_refuses_unknown_keys_with_the_nearest_name(key, near):
    with pytest.raises(SettingError, match=f"Did you mean `{near}`") as caught:
        DAPOConfig().update_from_dict({key: 1})
    assert caught.value.setting == key


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("clip_hgh", "clip_high"),
        ("grp_size", "group_size"),
        ("gama", "gamma"),
        ("modle", "model"),
    ],
)
def test_training_refuses_unknown_keywords_with_the_nearest_name(key, near):
    with pytest.raises(SettingError, match=f"Did you mean `{near}`") as caught:
        DAPOConfig().training(**{key: 1})
    assert caught.value.setting == key


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_is_refused_with_the_present_one(old, new):
    for refused in (
        lambda: DAPOConfig().update_from_dict({old: 1}),
        lambda: DAPOConfig().training(**{old: 1}),
    ):
        with pytest.raises(SettingError, match=f"`{old}` is now called `{new}`") as caught:
            refused()
        assert caught.value.setting == old
    assert new in setting_names()
    assert old not in vars(DAPOConfig())


def test_a_refused_update_names_keys_that_resemble_nothing_without_a_guess():
    with pytest.raises(SettingError) as caught:
        DAPOConfig().update_from_dict({"zzzzzz": 1})
    assert "Did you mean" not in str(caught.value)


def test_network_settings_of_rllib_are_refused_as_a_model():
    with pytest.raises(SettingError, match="trains a language model"):
        DAPOConfig().update_from_dict({"model": {"fcnet_hiddens": [64]}})


# -- The cluster --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "asked"),
    [
        ({"num_env_runners": 5}, "5 CPUs"),
        ({"num_env_runners": 2, "num_learners": 1, "num_cpus_per_learner": 4}, "6 CPUs"),
        ({"num_env_runners": 1, "num_gpus_per_env_runner": 1}, "1 GPUs"),
    ],
)
def test_more_than_the_cluster_has_is_refused(monkeypatch, overrides, asked):
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 4.0})
    with pytest.raises(SettingError, match=f"ask for {asked}, the cluster has") as caught:
        config(**overrides).validate()
    assert caught.value.setting == "num_env_runners"
    assert_possible(**overrides, wait_for_resources=True)


def test_learners_on_gpus_need_no_cpus(monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 2.0, "GPU": 2.0})
    assert_possible(num_env_runners=2, num_learners=2, num_gpus_per_learner=1)
    with pytest.raises(SettingError, match="4 CPUs"):
        config(num_env_runners=2, num_learners=2, num_cpus_per_learner=1).validate()


@pytest.mark.parametrize(
    ("given", "setting", "hint"),
    [
        ({"unfinished_groups": "continue", "max_staleness": 0}, "max_staleness", "use 1 or more"),
        (
            {"tensor_parallel_size": 4, "num_gpus_per_env_runner": 2},
            "tensor_parallel_size",
            "set both to the same number",
        ),
        (
            {
                "colocate": True,
                "async_level": 1,
                "num_env_runners": 1,
                "num_gpus_per_env_runner": 0.5,
            },
            "colocate",
            "turn one of them off",
        ),
    ],
)
def test_settings_of_rollouts_that_contradict_each_other_are_refused(given, setting, hint):
    with pytest.raises(SettingError, match=hint) as caught:
        config(**given).validate()
    assert caught.value.setting == setting


# -- Words that YAML takes for something else ---------------------------------------------


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("progress: off", "off"), ("progress: no", "off"), ("progress: on", "on"),
        ("progress: Yes", "on"), ("chat: no", "never"), ("chat: on", "always"),
        ("importance_sampling: null", "none"), ("importance_sampling: ~", "none"),
        ("importance_sampling: no", "none"), ("importance_sampling: none", "none"),
        ("dynamic_sampling: off", False), ("seed: null", None),
    ],
)  # fmt: skip
def test_words_without_quotes_are_the_words_that_were_meant(line, meant):
    given = yaml.safe_load(line)
    made = config(**given)
    assert getattr(made, next(iter(given))) == meant


@pytest.mark.parametrize("name", sorted(setting_kinds()))
def test_a_boolean_in_the_place_of_a_word_is_never_refused_with_advice_that_fails(name):
    """Quoting the word is the advice only where any text is allowed."""
    for word, value in (("off", False), ("on", True)):
        try:
            check_value(name, word_for(name, value))
        except SettingError as error:
            if "put the word in quotes" in str(error):
                check_value(name, word)


def test_a_boolean_inside_a_setting_is_named_with_the_advice():
    with pytest.raises(SettingError, match="put the word in quotes"):
        config(few_shot=[{"problem": "Is 2 even?", "answer": True}]).validate()


# -- A form of the answer that the grader does not read -----------------------------------


@pytest.mark.parametrize(
    ("settings", "grader", "possible"),
    [
        ({}, "strict", False),
        ({}, "robust", True),
        ({"few_shot": [{"problem": "1+1", "answer": "Answer: 2"}]}, "strict", True),
        ({"prompt_template": "plain"}, "strict", True),
    ],
)
def test_boxed_prompts_need_a_grader_that_reads_boxes(tmp_path, settings, grader, possible):
    data = tmp_path / "problems.jsonl"
    data.write_text('{"problem": "1+2", "answer": "3"}\n{"problem": "2+2", "answer": "4"}\n')
    made = config(**{"prompt_template": "boxed", "max_prompt_length": 256, **settings})
    made.environment("rllib_dapo/Math-v0", env_config={"dataset": str(data), "grader": grader})
    if possible:
        made.validate()
    else:
        with pytest.raises(SettingError, match=r"prompt_template='boxed'.*grader='robust'"):
            made.validate()
