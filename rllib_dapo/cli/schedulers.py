"""Tune's schedulers by name, made so that a metric may be missing from a result.

A metric such as that of an evaluation is not new in every iteration, and some are not there at
all: Tune would stop with an error, and its schedulers would compare a NaN with numbers. The
schedulers made here see only the results that have a number for their metric.
"""

from __future__ import annotations

import inspect
import math
import numbers
import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, cast

from rllib_dapo import metrics
from rllib_dapo.cli import search_space
from rllib_dapo.cli.experiment_file import Experiment, nearest
from rllib_dapo.errors import ExperimentFileError, SettingError

_STRICT = "TUNE_DISABLE_STRICT_METRIC_CHECKING"
_REPORTED = frozenset(metric.key for metric in metrics.ALL_METRICS)
MUTATIONS = ("hyperparam_mutations", "hyperparam_bounds")
"""The arguments of schedulers that name settings which they change."""

# Metrics that exist once for each name that a configuration gives.
_NAMED = tuple(metric.key.removesuffix("<name>") for metric in metrics.NAMED_METRICS)
# These compare nothing.
_WITHOUT_METRIC = ("fifo", "pbt_replay", "resource_changing")


def build_scheduler(experiment: Experiment) -> Any:
    """The scheduler that the experiment names; None means first come, first served.

    Raises:
        ExperimentFileError: Tune has no such scheduler, or the scheduler no such argument.
    """
    if experiment.scheduler is None:
        return None
    from ray.tune.error import TuneError
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
        arguments = search_space.to_tune(arguments)
        if ranges := _ranges(arguments.get(MUTATIONS[0]) or {}):
            arguments.setdefault("custom_explore_fn", _Within(ranges))
        scheduler = create_scheduler(name, **arguments)
    except (ValueError, TypeError, AssertionError, SettingError, TuneError, RuntimeError) as error:
        message = f"scheduler {name}: {error}"
        raise ExperimentFileError(experiment.located(message, key="scheduler")) from error
    return scheduler if name in _WITHOUT_METRIC else _seeing_numbers_only(scheduler)


def check_metric(experiment: Experiment) -> None:
    """Refuse a metric that DAPO never reports under this name.

    Raises:
        ExperimentFileError: the metric was renamed or is misspelt, or it is one of an evaluation
            and the experiment makes none.
    """
    if not experiment.is_dapo:
        return
    for key, name in _metrics_of(experiment).items():
        if present := metrics.renamed(name):
            message = f"the metric `{name}` is now called `{present}`; write that name"
            raise ExperimentFileError(experiment.located(message, key=key))
        evaluates = experiment.config.get("evaluation_interval")
        if not evaluates and name.startswith((metrics.EVALUATION, metrics.INITIAL_EVALUATION)):
            message = f"`{name}` needs evaluations; set `evaluation_interval` under `config`"
            raise ExperimentFileError(experiment.located(message, key=key))
        if suggestion := _misspelt(name):
            message = f"no metric `{name}`; did you mean `{suggestion}`?"
            raise ExperimentFileError(experiment.located(message, key=key))


def _metrics_of(experiment: Experiment) -> dict[str, str]:
    """The metrics that the experiment compares, by the key of the file that names them."""
    named = {
        "metric": experiment.metric,
        "scheduler_config": experiment.scheduler_config.get("metric"),
        "checkpoint_config": experiment.checkpoint_config.get("checkpoint_score_attribute"),
    }
    return {key: name for key, name in named.items() if isinstance(name, str)}


def _misspelt(name: str) -> str | None:
    """The metric that is meant, or None where the name may be one of the user's own."""
    if _is_reported(name):
        return None
    if "/" not in name:
        for prefix in (metrics.EVALUATION, metrics.ROLLOUT, metrics.LEARNER, metrics.TIME):
            if f"{prefix}/{name}" in _REPORTED:
                return f"{prefix}/{name}"
    near = get_close_matches(name, _REPORTED, n=1, cutoff=0.85)
    return near[0] if near else None


def _is_reported(name: str) -> bool:
    return name in _REPORTED or name.startswith(_NAMED)


def let_metrics_be_missing(experiment: Experiment) -> None:
    """Tell Tune that a result may lack the metric that it compares, if DAPO reports that metric.

    For other names Tune's own check stays, since it finds misspelt ones.
    """
    compared = (experiment.metric, experiment.scheduler_config.get("metric"))
    if all(_is_reported(name) for name in compared if isinstance(name, str)):
        os.environ.setdefault(_STRICT, "1")


class _SeesNumbersOnly:
    """A mixin before a scheduler of Tune: results without a number for the metric are skipped."""

    def on_trial_result(self, controller: Any, trial: Any, result: Mapping[str, Any]) -> Any:
        """Tune's hook."""
        from ray.tune.schedulers import TrialScheduler

        if not _is_number(result.get(self._metric)):  # type: ignore[attr-defined]
            return TrialScheduler.CONTINUE
        return super().on_trial_result(controller, trial, result)  # type: ignore[misc]


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not math.isnan(value)


def _seeing_numbers_only(scheduler: Any) -> Any:
    """The same scheduler with the mixin; its class stays a subclass, since Tune asks for it."""
    kind = type(scheduler)
    scheduler.__class__ = type(kind.__name__, (_SeesNumbersOnly, kind), {})
    return scheduler


def _ranges(mutations: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with a range, and its ends; nested ones in a mapping of their own."""
    found: dict[str, Any] = {}
    for name, values in mutations.items():
        if isinstance(values, Mapping):
            if inner := _ranges(values):
                found[name] = inner
        elif hasattr(values, "lower") and hasattr(values, "upper"):
            last = values.upper - 1 if isinstance(values.lower, int) else values.upper
            found[name] = (values.lower, last)
    return found


class _Within:
    """PBT multiplies a value by 0.8 or 1.2; this keeps it within the range that was given."""

    def __init__(self, ranges: Mapping[str, Any]) -> None:
        self._ranges = ranges

    def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
        """PBT's `custom_explore_fn`."""
        return _within(config, self._ranges)


def _within(config: dict[str, Any], ranges: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(config)
    for name, ends in ranges.items():
        if isinstance(ends, Mapping):
            changed[name] = _within(config[name], ends)
        else:
            changed[name] = min(max(config[name], ends[0]), ends[1])
    return changed
