"""Checks that need the model, the environment, the data or the cluster.

`settings.checks` checks what the settings alone can tell. Every message names the setting, its
value and the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rllib_dapo.algorithm.export import check_export
from rllib_dapo.algorithm.initial_weights import check_initial_weights
from rllib_dapo.data.prompts import PromptRenderer
from rllib_dapo.data.stops import Stops
from rllib_dapo.envs.math_env import MathEnv
from rllib_dapo.errors import SettingError, refuse
from rllib_dapo.model.facts import load_config, model_facts
from rllib_dapo.model.lora import check_lora, lora_options
from rllib_dapo.model.packable import check_packable
from rllib_dapo.rewards.columns import check_offered
from rllib_dapo.rewards.composition import check_rewards, columns_of_rewards
from rllib_dapo.rollout.text_episodes import make_env_of
from rllib_dapo.settings.evaluation import (
    check_form,
    check_written,
    refuse_idle_rllib_settings,
)
from rllib_dapo.settings.run import RunSettings


def refuse_network_settings(value: Mapping[str, Any]) -> None:
    """Raise for a `model` that is a dictionary of RLlib's old network settings."""
    raise SettingError(
        f"model={dict(value)!r:.80}: DAPO trains a language model; give its name as text, for "
        "instance `model: embedded`, a folder, or a hub id",
        "model",
    )


def check_before_rllib(config: RunSettings) -> None:
    """Check what RLlib's own validation would refuse without a remedy.

    Raises:
        SettingError: names the setting, its value and the remedy.
    """
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
    from ray.util.debug import log_once

    # RLlib would advise to go back to its old API stack, which DAPO does not support. It does
    # not when this has been logged.
    log_once(f"{getattr(config.algo_class, '__name__', None)}_on_new_api_stack")
    if config.framework_str != "torch":
        refuse("framework", config.framework_str, "DAPO runs on torch only")
    refuse_idle_rllib_settings(vars(config), vars(AlgorithmConfig()))
    if config.env is None:
        refuse("env", None, "name an environment, for instance `rllib_dapo/Arithmetic-v0`")


def check(config: RunSettings) -> None:
    """Check the settings against the model, the environment, the data and the cluster.

    Raises:
        SettingError: names the setting, its value and the remedy.
        DataError: the data set cannot be used.
    """
    check_rewards(config)
    _check_model(config)
    _check_environment(config)
    _check_evaluation(config)
    _check_cluster(config)


def _check_model(config: RunSettings) -> None:
    """The model exists, reads prompts and completions this long, and can be packed and adapted."""
    facts = model_facts(config.language_model, trust_remote_code=config.trust_remote_code)
    total = config.max_prompt_length + config.max_completion_length
    if facts.context_length is not None and total > facts.context_length:
        refuse(
            "max_completion_length",
            config.max_completion_length,
            f"with max_prompt_length={config.max_prompt_length} that makes {total} tokens, more "
            f"than model={config.language_model!r} reads ({facts.context_length}); lower one",
        )
    model_config = load_config(facts.path, trust_remote_code=config.trust_remote_code)
    if config.packing and not config.in_evaluation:  # the learner packs
        check_packable(model_config, longest=total)
    if config.lora_rank is not None:
        check_lora(model_config, **lora_options(config))
    check_initial_weights(config)
    check_export(config)
    renderer = PromptRenderer.from_settings(config)  # refuses impossible prompts
    Stops.from_settings(config, renderer)  # refuses stops that no completion can have


def _check_environment(config: RunSettings) -> None:
    """The environment can be made, with the columns that reward functions ask for.

    This reads the data.
    """
    columns = columns_of_rewards(config)
    env = make_env_of(config)
    if any(column.required for column in columns):
        _, info = env.reset(seed=0, options={"index": 0, "position": 0})
        check_offered(columns, info.get("columns", {}), str(config.env))
    _check_form_of_answers(config, env)
    env.close()


def _check_form_of_answers(config: RunSettings, env: Any) -> None:
    """The prompt must not ask for a form of the answer that the grader does not read."""
    strict = isinstance(env.unwrapped, MathEnv) and config.env_config.get("grader") == "strict"
    if config.prompt_template != "boxed" or not strict:
        return
    _, info = env.reset(seed=0, options={"index": 0})
    taught = any("answer:" in shot.get("answer", "").lower() for shot in config.few_shot)
    if "messages" not in info and not taught:  # chats keep their own wording
        refuse(
            "prompt_template",
            "boxed",
            "it asks for \\boxed{}, and grader='strict' reads a line `Answer: …` only, so no "
            "completion would ever be correct; use prompt_template='dapo' or grader='robust'",
        )


def _check_evaluation(config: RunSettings) -> None:
    """The settings with those of `evaluation_config` in their place must be possible too."""
    if config.in_evaluation or config.evaluation_config in (None, {}):
        return
    check_form(config.evaluation_config)
    try:
        evaluation: Any = config.get_evaluation_config_object()
        check_written(config.evaluation_config)
        evaluation.validate()
    except SettingError as error:
        if str(error.setting).startswith("evaluation_config"):
            raise
        name = f"evaluation_config.{error.setting}" if error.setting else "evaluation_config"
        raise SettingError(f"in evaluation_config: {error}", name) from error


def _check_cluster(config: RunSettings) -> None:
    """Refuse to wait for ever for CPUs and GPUs that the cluster does not have."""
    import ray
    from ray.rllib.algorithms.utils import _get_env_runner_bundles, _get_learner_bundles

    if config.in_evaluation or config.wait_for_resources or not ray.is_initialized():
        return
    # RLlib counts itself what it will ask Ray for.
    bundles = [*_get_env_runner_bundles(config), *_get_learner_bundles(config)]
    there = ray.cluster_resources()
    for kind in ("CPU", "GPU"):
        amount = sum(bundle.get(kind, 0) for bundle in bundles)
        if amount > there.get(kind, 0):
            refuse(
                "num_env_runners",
                config.num_env_runners,
                f"these runners and num_learners={config.num_learners} ask for {amount:g} {kind}s, "
                f"the cluster has {there.get(kind, 0):g}. Lower `num_env_runners` or "
                f"`num_{kind.lower()}s_per_env_runner` (fractions such as 0.5 are fine), or set "
                "`wait_for_resources` on a cluster that grows",
            )
