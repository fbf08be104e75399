"""The `tune.Tuner` that runs an experiment."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rllib_dapo.cli import search_space
from rllib_dapo.cli.experiment_file import Experiment, nearest
from rllib_dapo.errors import ExperimentFileError, SettingError

if TYPE_CHECKING:
    from ray import tune

DEFAULT_STORAGE = "results"


def results_path(experiment: Experiment) -> str:
    """The folder (or URI) of an experiment's results."""
    return f"{_storage(experiment)}/{experiment.name}"


def _storage(experiment: Experiment) -> str:
    path = experiment.storage_path or DEFAULT_STORAGE
    # Tune needs an absolute path or a URI (s3://...).
    return path if "://" in path else str(Path(path).expanduser().absolute())


def build_scheduler(experiment: Experiment) -> Any:
    """The scheduler that the experiment names; None means first come, first served.

    Raises:
        ExperimentFileError: Tune has no such scheduler, or the scheduler no such argument.
    """
    if experiment.scheduler is None:
        return None
    from ray.tune.schedulers import SCHEDULER_IMPORT, create_scheduler

    name, arguments = experiment.scheduler.lower(), dict(experiment.scheduler_config)
    if name not in SCHEDULER_IMPORT:
        message = f"no scheduler `{name}`; {nearest(name, SCHEDULER_IMPORT)}"
        raise ExperimentFileError(experiment.located(message, key="scheduler"))
    kind = cast(Callable[..., Any], SCHEDULER_IMPORT[name])
    known = inspect.signature(kind() if inspect.isfunction(kind) else kind).parameters
    for key in arguments:
        # Tune itself drops arguments that it does not know, without a word.
        if key not in known:
            message = f"scheduler {name} has no `{key}`; {nearest(key, known)}"
            raise ExperimentFileError(experiment.located(message, key="scheduler_config"))
    try:
        return create_scheduler(name, **search_space.to_tune(arguments))
    except (ValueError, TypeError, AssertionError, SettingError) as error:
        message = f"scheduler {name}: {error}"
        raise ExperimentFileError(experiment.located(message, key="scheduler")) from error


def to_tuner(
    experiment: Experiment,
    *,
    verbosity: int = 0,
    resume: bool = False,
    callbacks: Sequence[tune.Callback] = (),
) -> tune.Tuner:
    """Make the Tuner of an experiment.

    With `resume`, an experiment of this name that was interrupted or failed continues from its
    last checkpoints, with the settings it was started with, because Tune keeps those. If there
    is none, the experiment starts. Without `resume`, new trials get folders of their own beside
    those of earlier runs.

    Args:
        experiment: an experiment that passed `check.validate`.
        verbosity: from 2 on, Tune prints its own reports.
        resume: continue an earlier run.
        callbacks: Tune's callbacks.

    Raises:
        ExperimentFileError: the scheduler is unknown, or the earlier run had other settings.
    """
    from ray import tune

    run = experiment.run
    space = search_space.to_tune(dict(experiment.config))
    path = results_path(experiment)
    if resume and tune.Tuner.can_restore(path):
        try:
            return tune.Tuner.restore(path, run, resume_errored=True, param_space=space)
        except ValueError as error:
            # Tune compares the algorithm and the names of the settings, but not their values.
            message = (
                f"{path} was started with other settings; undo the change or rename the experiment"
            )
            raise ExperimentFileError(experiment.located(message)) from error
    restore = {"restore": experiment.restore} if experiment.restore else None
    return tune.Tuner(
        run,
        param_space=space,
        tune_config=tune.TuneConfig(
            num_samples=experiment.num_samples,
            metric=experiment.metric,
            mode=experiment.mode,
            scheduler=build_scheduler(experiment),
            max_concurrent_trials=experiment.max_concurrent_trials,
            time_budget_s=experiment.time_budget_s,
        ),
        run_config=tune.RunConfig(
            name=experiment.name,
            storage_path=_storage(experiment),
            stop=dict(experiment.stop),
            failure_config=tune.FailureConfig(max_failures=experiment.max_failures),
            checkpoint_config=tune.CheckpointConfig(**experiment.checkpoint_config),
            log_to_file=experiment.log_to_file,
            verbose=1 if verbosity > 1 else 0,
            callbacks=list(callbacks),
        ),
        _tuner_kwargs=restore,
    )
