"""Checks of a `DAPOConfig`: every message names the setting, its value and the remedy."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from rllib_dapo.data.prompts import PromptRenderer
from rllib_dapo.envs.make import make_env
from rllib_dapo.errors import SettingError, refuse
from rllib_dapo.model.facts import load_config, model_facts
from rllib_dapo.model.lora import check_lora
from rllib_dapo.model.packable import check_packable
from rllib_dapo.rewards.composition import check_rewards
from rllib_dapo.rewards.length import check_soft_overlong
from rllib_dapo.settings.general import setting_types
from rllib_dapo.settings.learner_checks import check_learner
from rllib_dapo.settings.rollout_checks import check_rollouts
from rllib_dapo.settings.run import RunSettings

RLLIB_KEYS = frozenset({
    "callbacks", "create_env_on_driver", "custom_eval_function", "framework", "input",
    "lambda", "multiagent", "num_cpus_for_driver", "num_workers", "exploration_config",
    "_enable_new_api_stack", "simple_optimizer", "policies",
})  # fmt: skip
"""Keys that RLlib's dictionaries may hold beside the attributes of its config."""

_RLLIB_TYPES: dict[str, Any] = {
    "lr": float,
    "minibatch_size": int | None,
    "num_epochs": int,
    "grad_clip": float | None,
    "grad_clip_by": str,
    "seed": int | None,
    "num_env_runners": int,
    "num_learners": int,
}

_DTYPES = ("auto", "float32", "float", "bfloat16", "float16", "half")


def refuse_unknown(given: Iterable[str], known: Iterable[str], *, also: Iterable[str] = ()) -> None:
    """Raise for the first key that is not known.

    Args:
        given: the keys.
        known: the names allowed.
        also: names to suggest beside them.

    Raises:
        SettingError: with the nearest right name.
    """
    names = sorted(name for name in {*known, *also} if not name.startswith("_"))
    allowed = set(known)
    for key in given:
        if key in allowed:
            continue
        near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.5)
        hint = f" Did you mean `{near[0]}`?" if near else ""
        raise SettingError(
            f"`{key}` is no setting of DAPO or RLlib.{hint} DAPO's settings are listed in "
            "rllib_dapo/settings/general.py and docs/settings.md.",
            str(key),
        )


@cache
def training_keywords() -> frozenset[str]:
    """The keywords of RLlib's own `AlgorithmConfig.training`."""
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    parameters = inspect.signature(AlgorithmConfig.training).parameters
    return frozenset(parameters) - {"self"}


def refuse_network_settings(value: Mapping[str, Any]) -> None:
    """Raise for a `model` that is a dictionary of RLlib's old network settings."""
    raise SettingError(
        f"model={dict(value)!r:.80}: DAPO trains a language model; give its name as text, for "
        "instance `model: embedded`, a folder, or a hub id",
        "model",
    )


def check_before_rllib(config: RunSettings) -> None:
    """Check what RLlib's own validation would trip over."""
    from ray.util.debug import log_once

    _check_types(config)
    # RLlib would advise to go back to its old API stack; there is no DAPO on that.
    log_once(f"{getattr(config.algo_class, '__name__', None)}_on_new_api_stack")
    if config.framework_str != "torch":
        refuse("framework", config.framework_str, "DAPO runs on torch only")
    if config.env is None:
        refuse("env", None, "name an environment, for instance `rllib_dapo/Arithmetic-v0`")


def check(config: RunSettings) -> None:
    """Check DAPO's settings against each other, the model, the data and the cluster."""
    _check_ranges(config)
    _check_batch(config)
    check_learner(config)
    check_rollouts(config)
    check_soft_overlong_settings(config)
    check_rewards(config)
    _check_model(config)
    _check_environment(config)
    _check_evaluation(config)
    _check_cluster(config)


def check_soft_overlong_settings(config: RunSettings) -> None:
    """Eq. 13 needs 0 < L_cache ≤ L_max; nothing is asked of it while it is off."""
    if config.soft_overlong_punishment:
        check_soft_overlong(
            max_length=config.max_completion_length, cache=config.soft_overlong_cache
        )


@cache
def _adapters() -> dict[str, TypeAdapter[Any]]:
    options = ConfigDict(strict=True)
    kinds = setting_types() | _RLLIB_TYPES
    return {name: TypeAdapter(kind, config=options) for name, kind in kinds.items()}


def _check_types(config: RunSettings) -> None:
    for name, adapter in _adapters().items():
        value = getattr(config, name)
        try:
            adapter.validate_python(value.item() if isinstance(value, np.generic) else value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            key = "model" if name == "language_model" else name
            raise SettingError(f"{key}={value!r}: {reason}", key) from error


def _check_ranges(config: RunSettings) -> None:
    at_least = {
        "group_size": (2, "an answer is compared with the others of its group; use 2 or more"),
        "groups_per_batch": (1, "use 1 or more"),
        "max_sampling_rounds": (1, "use 1 or more"),
        "max_prompt_length": (1, "use 1 token or more"),
        "max_completion_length": (1, "use 1 token or more"),
        "warmup_iterations": (0, "use 0 for none"),
        "weight_decay": (0, "use 0 for none"),
        "max_tokens_per_microbatch": (1, "use 1 token or more"),
        "max_skipped_updates": (1, "use 1 or more"),
        "clip_high": (0, "use 0 or more; the paper has 0.28"),
        "evaluation_samples": (1, "use 1 or more"),
        "evaluation_temperature": (0, "use 0 (greedy) or more"),
        "engine_cpu_threads": (1, "use 1 or more, or null for what the process has"),
        "learner_cpu_threads": (1, "use 1 or more, or null for what the process has"),
        "max_engine_gap": (0, "use 0 nats or more, or null for no alarm"),
        "kl_coeff": (0, "use 0 for no reference policy"),
        "lr": (0, "use one number of 0 or more; warm-up is `warmup_iterations`"),
        "seed": (0, "use 0 or more"),
        "num_env_runners": (0, "use 0 for one engine in the main process"),
        "num_learners": (0, "use 0 for one learner in the main process"),
    }
    for name, (bound, remedy) in at_least.items():
        value = getattr(config, name)
        if value is not None and not value >= bound:
            refuse(name, value, remedy)
    if not 0 < config.clip_low < 1:
        refuse("clip_low", config.clip_low, "use a number between 0 and 1; the paper has 0.2")
    if config.dual_clip is not None and not config.dual_clip > 1:
        refuse("dual_clip", config.dual_clip, "use a number above 1, or null for none")
    if not config.temperature > 0:
        refuse("temperature", config.temperature, "training samples; use a number above 0")
    if config.top_p != 1:
        refuse(
            "top_p",
            config.top_p,
            "the loss needs the probabilities of the whole distribution; use 1.0 in training and "
            "`evaluation_top_p` for evaluation",
        )
    if not 0 < config.evaluation_top_p <= 1:
        refuse("evaluation_top_p", config.evaluation_top_p, "use a number above 0, up to 1")
    if not config.kv_cache_gib > 0:
        refuse("kv_cache_gib", config.kv_cache_gib, "use a number of GiB above 0")
    if config.dtype not in _DTYPES:
        refuse("dtype", config.dtype, f"use one of {', '.join(_DTYPES)}")


def _check_batch(config: RunSettings) -> None:
    completions, size = config.completions_per_batch, config.minibatch_size
    if size is None or not 1 <= size <= completions:
        refuse(
            "minibatch_size",
            size,
            f"use 1 to {completions} completions (groups_per_batch={config.groups_per_batch} times "
            f"group_size={config.group_size})",
        )
    if completions % size:
        refuse(
            "minibatch_size",
            size,
            f"it must divide the {completions} completions of a batch (groups_per_batch="
            f"{config.groups_per_batch} times group_size={config.group_size})",
        )
    if config.num_learners > size:
        refuse("num_learners", config.num_learners, f"use at most minibatch_size={size}")
    if config.num_epochs < 1:
        refuse("num_epochs", config.num_epochs, "use 1 or more")


def _check_model(config: RunSettings) -> None:
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
    if config.packing:
        check_packable(model_config, longest=total)
    if config.lora_rank is not None:
        check_lora(
            model_config,
            rank=config.lora_rank,
            alpha=config.lora_alpha,
            target_modules=config.lora_target_modules,
        )
    PromptRenderer.from_settings(config)  # refuses impossible prompts


def _check_environment(config: RunSettings) -> None:
    make_env(config.env, config.env_config).close()


def _check_evaluation(config: RunSettings) -> None:
    """`evaluation_config` overrides settings for evaluation: it must be possible as a whole."""
    if config.in_evaluation or not config.evaluation_config:
        return
    try:
        evaluation = config.get_evaluation_config_object()
        assert evaluation is not None  # noqa: S101 - it is for evaluation configs only
        evaluation.validate()
    except SettingError as error:
        name = f"evaluation_config.{error.setting}" if error.setting else "evaluation_config"
        raise SettingError(f"in evaluation_config: {error}", name) from error


def _check_cluster(config: RunSettings) -> None:
    """Refuse to wait for ever for CPUs and GPUs that the cluster does not have."""
    import ray
    from ray.rllib.algorithms.utils import _get_env_runner_bundles, _get_learner_bundles

    if config.in_evaluation or config.wait_for_resources or not ray.is_initialized():
        return
    # What RLlib will ask Ray for, as it counts itself.
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
