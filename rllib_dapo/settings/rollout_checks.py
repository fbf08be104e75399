"""Checks of the settings of rollouts: limits, lead, placement, weights."""

from __future__ import annotations

from rllib_dapo.errors import refuse
from rllib_dapo.settings.run import RunSettings

_REMEDIES = {
    "max_staleness": "use 0 (nothing left over is used) or more policy versions",
    "sync_check_interval": "use 0 for no check, or more",
    "max_problem_attempts": "use 1 or more",
    "tensor_parallel_size": "use 1 or more",
    "runner_timeout_s": "use seconds above 0; longer than one step of the model takes",
    "runner_restart_timeout_s": "use seconds above 0; longer than an engine takes to start",
    "sync_check_tolerance": "use nats above 0, or null for what the number formats suggest",
}
_AT_LEAST = {
    "max_staleness": 0,
    "sync_check_interval": 0,
    "max_problem_attempts": 1,
    "tensor_parallel_size": 1,
}
_ABOVE_0 = ("runner_timeout_s", "runner_restart_timeout_s", "sync_check_tolerance")


def check_rollouts(config: RunSettings) -> None:
    """Refuse impossible settings of rollouts.

    Raises:
        SettingError: names the setting, its value and the remedy.
    """
    for name, bound in _AT_LEAST.items():
        if not getattr(config, name) >= bound:
            refuse(name, getattr(config, name), _REMEDIES[name])
    for name in _ABOVE_0:
        value = getattr(config, name)
        if value is not None and not value > 0:
            refuse(name, value, _REMEDIES[name])
    _check_lead(config)
    _check_placement(config)


def _check_lead(config: RunSettings) -> None:
    # RLlib's own copy for evaluation has no runners: the engines of training answer.
    if config.async_level and not config.num_env_runners and not config.in_evaluation:
        refuse(
            "async_level",
            config.async_level,
            "num_env_runners=0 leaves engine and learner in one process, where they take turns; "
            "set `num_env_runners` to 1 or more, or `async_level` to 0",
        )
    if config.unfinished_groups == "continue" and not config.max_staleness:
        refuse(
            "max_staleness",
            0,
            "unfinished_groups='continue' lets answers go on under new weights, so groups have "
            "older tokens; use 1 or more, or another `unfinished_groups`",
        )


def _check_placement(config: RunSettings) -> None:
    gpus, size = config.num_gpus_per_env_runner, config.tensor_parallel_size
    if gpus and size > 1 and gpus != size:
        refuse(
            "tensor_parallel_size",
            size,
            f"an engine spread over {size} GPUs needs as many; num_gpus_per_env_runner={gpus}: "
            "set both to the same number",
        )
    if not config.colocate:
        return
    if not (gpus or config.num_gpus_per_learner):
        refuse(
            "colocate",
            True,
            "shares GPUs between engines and learners, but num_gpus_per_env_runner=0 and "
            "num_gpus_per_learner=0: set them (fractions such as 0.5 share one GPU), or `colocate` "
            "to false",
        )
    if config.async_level:
        refuse(
            "colocate",
            True,
            "engines that sleep while the learner trains cannot sample meanwhile "
            f"(async_level={config.async_level}); turn one of them off",
        )
