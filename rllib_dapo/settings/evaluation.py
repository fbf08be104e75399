"""What acts in an evaluation: settings in `evaluation_config`, and RLlib's own of evaluation.

An evaluation samples with the runners and engines of training. What says how a problem is posed,
sampled and scored may differ in it; everything else is refused, because it would have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from rllib_dapo.errors import SettingError
from rllib_dapo.settings.learner import LearnerSettings
from rllib_dapo.settings.run import RLlibTrainingSettings

IN_EVALUATION = frozenset({
    "env", "env_config", "evaluation_duration", "evaluation_samples", "evaluation_temperature",
    "evaluation_top_p", "max_prompt_length", "max_completion_length", "prompt_template",
    "system_prompt", "few_shot", "chat", "chat_template_kwargs", "format_reward",
    "reward_functions", "reward_failure", "reward_timeout_s",
})  # fmt: skip
"""The settings that may differ in an evaluation."""

OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {"temperature": "evaluation_temperature", "top_p": "evaluation_top_p"}
)
"""Names that mean the setting of evaluation when they are in `evaluation_config`."""

_OF_THE_ENGINES = (
    "the engines have one set of stops and one form of texts for training and evaluation: set it "
    "outside of evaluation_config"
)
_NOT_HERE = {
    "group_size": "the number of completions of a problem in evaluation is `evaluation_samples`",
    "evaluation_interval": "it says when to evaluate: set it outside of evaluation_config",
    "evaluate_before_training": "it says when to evaluate: set it outside of evaluation_config",
    "seed": "evaluation poses the same problems every time and draws its completions from the "
    "seed of the run: set it outside of evaluation_config",
    "stop": _OF_THE_ENGINES,
    "stop_token_ids": _OF_THE_ENGINES,
    "include_stop_str_in_output": _OF_THE_ENGINES,
    "skip_special_tokens": _OF_THE_ENGINES,
}
_OF_THE_LEARNER = frozenset(
    field.name for kind in (LearnerSettings, RLlibTrainingSettings) for field in fields(kind)
)

_RLLIB_REMEDIES = {
    "evaluation_parallel_to_training": "evaluation uses the engines of training, which take turns; "
    "set it to false (`async_level: 1` lets sampling and training overlap)",
    "evaluation_num_env_runners": "evaluation uses the runners of training; set it to 0, and "
    "`num_env_runners` for the number of engines",
    "evaluation_duration_unit": "`evaluation_duration` counts problems, each with "
    "`evaluation_samples` episodes of one step; leave it at 'episodes'",
    "evaluation_sample_timeout_s": "`runner_timeout_s` says how long to wait for a runner",
    "evaluation_unhealthy_workers_timeout_s": "`runner_restart_timeout_s` says how long to wait "
    "for runners to come back",
    "evaluation_error_after_n_consecutive_skips": "no evaluation is skipped; a run without "
    "runners stops after `runner_restart_timeout_s`",
    "evaluation_force_reset_envs_before_iteration": "every episode begins with a reset; leave it "
    "at true",
    "custom_evaluation_function": "DAPO's own evaluation would never call it; add to the results "
    "in the callback `on_evaluate_end`",
}
_ACTING = frozenset({"evaluation_interval", "evaluation_duration", "evaluation_config"})
_NOTHING_OFFLINE = "DAPO evaluates by sampling only; leave it at its default"


def refuse_idle_rllib_settings(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse RLlib's settings of evaluation that have no effect here.

    Args:
        given: all settings of a run by name.
        defaults: RLlib's own defaults.

    Raises:
        SettingError: a setting that has no effect differs from its default.
    """
    for name, default in defaults.items():
        of_evaluation = "evaluation" in name or "offline_eval" in name or name.startswith("ope_")
        if not of_evaluation or name in _ACTING or name == "in_evaluation":
            continue
        value = given.get(name, default)
        if value != default:
            remedy = _RLLIB_REMEDIES.get(name, _NOTHING_OFFLINE)
            raise SettingError(f"{name}={value!r}: {remedy}", name)


def check_form(written: Any) -> None:
    """Refuse a value of `evaluation_config` that is no mapping.

    Raises:
        SettingError: names the form to use.
    """
    if not isinstance(written, Mapping):
        raise SettingError(
            f"evaluation_config={written!r:.60}: give a mapping of the settings that differ in "
            "evaluation, for instance {'env_config': {'split': 'validation'}}; "
            "`DAPOConfig.overrides(...)` makes one",
            "evaluation_config",
        )


def check_written(written: Mapping[str, Any]) -> None:
    """Refuse what `evaluation_config` cannot change. Unknown names are refused elsewhere.

    Args:
        written: the value of `evaluation_config`.

    Raises:
        SettingError: a setting has no effect in an evaluation, or two contradict each other.
    """
    for name, value in written.items():
        if name not in IN_EVALUATION and name not in OTHER_NAMES and name != "explore":
            _refuse(name, value, _why_not(name))
    for name, own in OTHER_NAMES.items():
        if name in written and own in written and written[name] != written[own]:
            _refuse(name, written[name], f"{own}={written[own]!r} means the same; keep one of them")
    _check_explore(written)


def meant_by(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that act for those in `evaluation_config` that have other names.

    `temperature` and `top_p` are those of evaluation here. `explore: false`, RLlib's word for the
    policy without chance, is a temperature of 0.
    """
    meant = {own: written[name] for name, own in OTHER_NAMES.items() if name in written}
    if written.get("explore") is False:
        meant["evaluation_temperature"] = 0.0
    return meant


def _check_explore(written: Mapping[str, Any]) -> None:
    explore = written.get("explore")
    if explore is None:
        return
    if not isinstance(explore, bool):
        _refuse("explore", explore, "use true or false")
    for name in ("temperature", "evaluation_temperature"):
        if not explore and written.get(name):
            _refuse(
                "explore",
                explore,
                f"it means greedy completions, which {name}={written[name]!r} contradicts; keep "
                "one of them",
            )


def _why_not(name: str) -> str:
    if name in _NOT_HERE:
        return _NOT_HERE[name]
    if name in _OF_THE_LEARNER:
        return "it belongs to the learner, and evaluation trains nothing: set it outside"
    return (
        "evaluation uses the model, runners and engines of training, so it has no effect here: set "
        "it outside of evaluation_config"
    )


def _refuse(name: str, value: Any, remedy: str) -> None:
    setting = f"evaluation_config.{name}"
    raise SettingError(f"{setting}={value!r:.80}: {remedy}", setting)
