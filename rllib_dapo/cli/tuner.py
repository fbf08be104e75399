"""The `tune.Tuner` that runs an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rllib_dapo.cli import search_space
from rllib_dapo.cli.experiment_file import Experiment
from rllib_dapo.cli.schedulers import MUTATIONS, build_scheduler, let_metrics_be_missing
from rllib_dapo.errors import ExperimentFileError

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


def with_own_seeds(experiment: Experiment) -> Experiment:
    """The experiment, with a seed for each repetition where it has none.

    Without a seed DAPO takes 0, and repetitions would pose the same problems and draw the same
    completions. The repetitions of `num_samples` get the seeds 0, 1, 2, …, which stand in the
    configs of the trials. Values that a grid compares within one repetition share its seed.
    Without an end (-1) the seeds are drawn.
    """
    config, repetitions = experiment.config, experiment.num_samples
    if not experiment.is_dapo or repetitions == 1 or config.get("seed") is not None:
        return experiment
    if repetitions == -1:
        return replace(experiment, config={**config, "seed": {"tune.randint": [0, 2**31 - 1]}})
    # A grid of seeds makes the repetitions.
    seeds = {search_space.GRID: list(range(repetitions))}
    return replace(experiment, config={**config, "seed": seeds}, num_samples=1)


def varied_names(experiment: Experiment) -> tuple[str, ...]:
    """The settings in which the trials differ, nested ones as `a/b`."""
    paths = search_space.find(dict(with_own_seeds(experiment).config))
    names = ["/".join(map(str, path)) for path in paths]
    for key in MUTATIONS:
        names += experiment.scheduler_config.get(key) or {}
    return tuple(dict.fromkeys(names))


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

    let_metrics_be_missing(experiment)
    experiment = with_own_seeds(experiment)
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
