"""Checks of an experiment before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllib_dapo.cli import search_space
from rllib_dapo.cli.experiment_file import Experiment, nearest
from rllib_dapo.cli.mutations import check_mutations
from rllib_dapo.cli.schedulers import build_scheduler, check_metric
from rllib_dapo.errors import DAPOError, ExperimentFileError, SettingError

# The settings that make a trial ask for less of a resource.
_SETTINGS_OF = {
    "CPU": "num_env_runners, num_cpus_per_env_runner, num_learners, num_cpus_per_learner, "
    "evaluation_num_env_runners or num_cpus_for_main_process",
    "GPU": "num_env_runners, num_gpus_per_env_runner, num_learners or num_gpus_per_learner",
}


def algorithm_class(experiment: Experiment) -> type[Any]:
    """The algorithm class that an experiment names.

    Raises:
        ExperimentFileError: no algorithm has this name.
    """
    if isinstance(experiment.run, type):
        return experiment.run
    from ray.rllib.algorithms.registry import ALGORITHMS
    from ray.tune.error import TuneError
    from ray.tune.registry import get_trainable_cls

    from rllib_dapo.algorithm.registration import register

    register()
    try:
        found: type[Any] = get_trainable_cls(experiment.run)
    except TuneError as error:
        hint = nearest(experiment.run, ["DAPO", *ALGORITHMS])
        message = f"no algorithm `{experiment.run}`; {hint}"
        raise ExperimentFileError(experiment.located(message, key="run")) from error
    return found


def validate(experiment: Experiment) -> list[Any]:
    """Build and check the config of every variant, without starting Ray.

    If the varied values make more than `search_space.MAX_VARIANTS` combinations, each value is
    checked once instead of every combination.

    Returns:
        One algorithm config for each variant that was checked.

    Raises:
        ExperimentFileError: a setting is wrong; the message begins with its file and line.
    """
    algorithm = algorithm_class(experiment)
    _check_restore(experiment)
    check_metric(experiment)
    configs = []
    try:
        for variant in search_space.variants(dict(experiment.config)):
            config = algorithm.get_default_config()
            config.update_from_dict(variant)
            config.validate()
            configs.append(config)
        if not configs:  # No value is known before Tune draws it: the trials check them.
            variant = search_space.known_part(dict(experiment.config))
            configs = [algorithm.get_default_config().update_from_dict(variant)]
    except SettingError as error:
        raise ExperimentFileError(experiment.located(str(error), error.setting)) from error
    # RLlib's own checks raise these, and a setting of the wrong type leads to them.
    except (DAPOError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise ExperimentFileError(experiment.located(f"{error}")) from error
    check_mutations(experiment, algorithm, variant)
    build_scheduler(experiment)
    return configs


def _check_restore(experiment: Experiment) -> None:
    """Raise ExperimentFileError if the checkpoint to start from is not there."""
    if experiment.restore and not Path(experiment.restore).expanduser().is_dir():
        raise ExperimentFileError(
            experiment.located(
                f"no checkpoint folder {experiment.restore!r}; `restore` must be a folder on this "
                "machine, relative to the folder where the command is given",
                key="restore",
            )
        )
    if experiment.restore and experiment.config.get("restore_weights_from"):
        raise ExperimentFileError(
            experiment.located(
                "`restore` continues a run and `restore_weights_from` starts a new one; keep one",
                key="restore",
            )
        )


def check_resources(
    bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, float]]
) -> None:
    """Refuse a trial that the cluster can never hold; Ray would leave it PENDING forever.

    Args:
        bundles: the resources that the trial asks for; each bundle must fit on one node.
        nodes: the total resources of each node.

    Raises:
        SettingError: the cluster is too small; the message names the resource, both numbers and
            the settings to change.
    """
    for name in sorted({name for bundle in bundles for name in bundle}):
        asked = sum(bundle.get(name, 0) for bundle in bundles)
        available = sum(node.get(name, 0) for node in nodes)
        settings = _SETTINGS_OF.get(name, f"what asks for {name!r} in the config")
        if asked > available:
            raise SettingError(
                f"a trial asks for {asked:g} {name} and the cluster has {available:g}; "
                f"lower {settings}" + (", or raise --ray-num-cpus" if name == "CPU" else "")
            )
        largest = max((bundle.get(name, 0) for bundle in bundles), default=0)
        if largest > max((node.get(name, 0) for node in nodes), default=0):
            raise SettingError(
                f"one worker asks for {largest:g} {name}, more than any machine has; "
                f"lower {settings}"
            )


def trial_request(
    experiment: Experiment, nodes: Sequence[Mapping[str, float]] | None
) -> list[dict[str, float]]:
    """Check that every variant fits on the cluster.

    Args:
        experiment: an experiment that passed `validate`.
        nodes: the total resources of each node; None checks nothing.

    Returns:
        The resources that a trial of the first variant asks for, as bundles.

    Raises:
        ExperimentFileError: the cluster can never hold a variant.
    """
    algorithm = algorithm_class(experiment)
    requests: list[list[dict[str, float]]] = [
        algorithm.default_resource_request(variant).bundles
        for variant in search_space.variants(dict(experiment.config))
    ] or [
        algorithm.default_resource_request(search_space.known_part(dict(experiment.config))).bundles
    ]
    try:
        for request in requests if nodes is not None else ():
            check_resources(request, nodes or ())
    except SettingError as error:
        raise ExperimentFileError(experiment.located(str(error), key="config")) from error
    return requests[0]
