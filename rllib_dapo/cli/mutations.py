"""Checks of the settings that a scheduler changes in running trials (PBT, PB2).

Tune finds out only when a trial is to take over a new value, perhaps after days. So each value is
checked before Ray starts, as if it stood under `config`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rllib_dapo.cli import search_space
from rllib_dapo.cli.experiment_file import Experiment
from rllib_dapo.cli.schedulers import MUTATIONS
from rllib_dapo.errors import DAPOError, ExperimentFileError

_WEIGHTS = "the trial goes on with the weights of another one, which belong to another model"
_RESOURCES = "Tune reserves the resources of a trial once, when it starts"
_STREAM = "the trial goes on in the problem stream of another one, which belongs to other problems"
_ONCE = "it acts only before the first iteration"
_FIXED = {
    **dict.fromkeys(
        ("model", "language_model", "trust_remote_code", "lora_rank", "lora_alpha",
         "lora_target_modules"), _WEIGHTS),
    **dict.fromkeys(
        ("num_env_runners", "num_cpus_per_env_runner", "num_gpus_per_env_runner", "num_learners",
         "num_cpus_per_learner", "num_gpus_per_learner", "num_cpus_for_main_process",
         "tensor_parallel_size", "shard_model", "colocate"), _RESOURCES),
    **dict.fromkeys(("seed", "env", "env_config.dataset"), _STREAM),
    **dict.fromkeys(("restore_weights_from", "evaluate_before_training"), _ONCE),
}  # fmt: skip
"""Settings of DAPO that a running trial cannot take over, and why."""


def check_mutations(
    experiment: Experiment, algorithm: type[Any], config: Mapping[str, Any]
) -> None:
    """Refuse settings that a scheduler could not change in a running trial.

    Args:
        experiment: its `scheduler_config` may have `hyperparam_mutations` (PBT), which map
            settings to lists, ranges or functions, or `hyperparam_bounds` (PB2), which map them
            to `[low, high]`.
        algorithm: the class of the algorithm.
        config: the settings of one variant, in which single values are replaced.

    Raises:
        ExperimentFileError: a setting is unknown or cannot change, or a value is impossible.
    """
    for key in MUTATIONS:
        mutations = experiment.scheduler_config.get(key)
        if mutations is None:
            continue
        place = f"scheduler_config: {key}"
        if not isinstance(mutations, Mapping) or not mutations:
            message = f"{place} is {mutations!r}; write a mapping, setting: values"
            raise ExperimentFileError(experiment.located(message, key="scheduler_config"))
        for path, values in _leaves(mutations):
            name = ".".join(path)
            try:
                _check_values(experiment, algorithm, config, path, values)
            except (DAPOError, ValueError, TypeError, AttributeError, KeyError) as error:
                message = f"{place}: {name}: {error}"
                raise ExperimentFileError(
                    experiment.located(message, key="scheduler_config")
                ) from error


def _check_values(
    experiment: Experiment,
    algorithm: type[Any],
    config: Mapping[str, Any],
    path: tuple[str, ...],
    values: Any,
) -> None:
    name = ".".join(path)
    if experiment.is_dapo and name in _FIXED:
        raise DAPOError(f"`{name}` cannot change in a running trial: {_FIXED[name]}")
    for value in _examples(values, name):
        changed = algorithm.get_default_config()
        changed.update_from_dict(_with(config, path, value))
        changed.validate()


def _leaves(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Each path with its values; a mapping is nested unless it is a random value."""
    for key, value in tree.items():
        here = (*path, str(key))
        if isinstance(value, Mapping) and not _is_random(value):
            yield from _leaves(value, here)
        else:
            yield here, value


def _is_random(value: Mapping[str, Any]) -> bool:
    """Whether a mapping is a grid or the name of a sampler, right or wrong, with its arguments."""
    return any(key == search_space.GRID or str(key).startswith("tune.") for key in value)


def _examples(values: Any, name: str) -> Sequence[Any]:
    """The values to check: all of a list, both ends of a range, or one drawn value."""
    varied = search_space.varied(values, name)
    if varied is not None and varied.kind != search_space.GRID:
        return varied.examples()
    if isinstance(values, list | tuple) and values:
        return values
    if callable(values):
        return (values(),)
    raise DAPOError(
        f"{values!r} gives no values; write a list, or a range such as "
        "{tune.uniform: [low, high]}"
    )


def _with(config: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy of `config` with another value at `path`."""
    first, *rest = path
    inner = config.get(first) or {}
    return {**config, first: _with(inner, tuple(rest), value) if rest else value}
