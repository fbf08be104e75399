"""From experiments to results: check them, start Ray, run them with Tune.

Several experiments of one file run one after the other, so that each has the whole machine and
an early failure is seen early; the trials of one experiment run side by side as far as they
fit. All experiments are checked before the first one starts. Ray is imported inside the
functions, because it takes seconds and `rllib --help` should not.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_dapo.cli.check import trial_request, validate
from rllib_dapo.cli.experiment_file import Experiment
from rllib_dapo.cli.flags import RayOptions, RunOptions
from rllib_dapo.cli.tuner import results_path, to_tuner, varied_names
from rllib_dapo.errors import SettingError

if TYPE_CHECKING:
    from ray import tune


@dataclass(frozen=True)
class FailedTrial:
    """A trial that failed.

    Attributes:
        trial: the name of its folder.
        message: the cause, in a line or so.
        log: the file with the whole traceback.
    """

    trial: str
    message: str
    log: str


def run_experiments(
    experiments: Sequence[Experiment], options: RunOptions | None = None
) -> list[tune.ResultGrid]:
    """Check all experiments, then run them one after the other.

    Raises:
        ExperimentFileError, SettingError: the input is wrong; nothing has run.
        KeyboardInterrupt: the user stopped the run; Tune has saved its state.
    """
    options = options or RunOptions()
    configs = [validate(experiment) for experiment in experiments]
    callbacks = _wandb(options)
    import ray

    from rllib_dapo.cli import console

    started = _start_ray(options)
    try:
        nodes = _nodes() if options.check_cluster else None
        requests = [trial_request(experiment, nodes) for experiment in experiments]
        grids = []
        for experiment, checked, bundles in zip(experiments, configs, requests, strict=True):
            console.announce(
                experiment,
                checked[0],
                bundles,
                results_path(experiment),
                _note(experiment, options),
            )
            varied = varied_names(experiment)
            line_printer = console.iteration_callback(experiment.run_name, varied)
            tuner = to_tuner(
                experiment,
                verbosity=options.verbosity,
                resume=options.resume,
                callbacks=[line_printer, *callbacks],
            )
            grid, interrupted = _fit(tuner)
            console.summarise(grid, interrupted, varied)
            if interrupted:
                raise KeyboardInterrupt
            grids.append(grid)
        return grids
    finally:
        if started:
            ray.shutdown()


def _fit(tuner: tune.Tuner) -> tuple[tune.ResultGrid, bool]:
    """Run the trials; also returns whether ctrl-C ended the run.

    At the first ctrl-C Tune saves its state and returns as if every trial had finished; no
    result of it says otherwise. But its signal handler puts the previous handler back when it
    is called, so after an interruption the handler is again the one that was there before.
    After a run to the end Tune's handler is still in place, where it would swallow the next
    ctrl-C, so it is removed here.
    """
    found = signal.getsignal(signal.SIGINT)
    handles = threading.current_thread() is threading.main_thread() and not int(
        os.getenv("TUNE_DISABLE_SIGINT_HANDLER", "0")
    )
    try:
        grid = tuner.fit()
        return grid, handles and signal.getsignal(signal.SIGINT) is found
    finally:
        if handles:
            signal.signal(signal.SIGINT, found)


def _note(experiment: Experiment, options: RunOptions) -> str | None:
    """A sentence about earlier runs of the same name, if there is something to say."""
    from ray import tune

    if tune.Tuner.can_restore(results_path(experiment)):
        if options.resume:
            return "resumed, with the settings it was started with"
        return "new trials beside earlier ones of this name (--resume would continue those)"
    return "nothing to resume, starting" if options.resume else None


def _nodes() -> list[dict[str, float]]:
    """The total resources of each living node of the cluster."""
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()
    return [node["Resources"] for node in nodes if node["Alive"]]


def _start_ray(options: RayOptions) -> bool:
    """Start or join Ray unless this process has already; returns whether it did.

    Raises:
        SettingError: the options contradict each other, or the cluster cannot be reached.
    """
    import ray

    from rllib_dapo.algorithm.registration import register

    # Paths in a config are relative to the folder where the command was given, not to that of a
    # trial.
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    if options.verbosity < 2:
        _quieten_tune()
    if ray.is_initialized():
        register()
        return False
    local = {
        "num_cpus": options.ray_num_cpus,
        "num_gpus": options.ray_num_gpus,
        "object_store_memory": options.ray_object_store_memory,
    }
    given: dict[str, Any] = {key: value for key, value in local.items() if value is not None}
    if options.ray_address and given:
        names = ", ".join(f"--ray-{key.replace('_', '-')}" for key in given)
        raise SettingError(
            f"{names} describe a new cluster and --ray-address a running one; drop one"
        )
    try:
        ray.init(
            address=options.ray_address,
            include_dashboard=False,
            log_to_driver=options.verbosity > 0,
            logging_level=logging.INFO if options.verbosity > 1 else logging.WARNING,
            **given,
        )
    except (ConnectionError, ValueError) as error:
        raise SettingError(f"Ray does not start: {error}") from error
    # The registry is wiped with every new Ray session.
    register()
    return True


def _quieten_tune() -> None:
    """Keep Tune from printing at length what `console` and `failed_trials` say in a line."""
    # Tune's newer reports are printed even with verbose=0; the older ones are not.
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    # The traceback of a failed trial is in its error.txt, and we print the cause at the end.
    logging.getLogger("ray.tune.execution.tune_controller").setLevel(logging.CRITICAL)
    logging.getLogger("ray.tune.tune").addFilter(_is_news)
    # Our own summary says that a failed trial has no results.
    logging.getLogger("ray.tune.analysis.experiment_analysis").setLevel(logging.ERROR)
    # Ray explains its token authentication at every start, which no user of this command needs.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.msg.startswith(("Trials did not complete", "Experiment has been interrupted"))


def _wandb(options: RunOptions) -> list[tune.Callback]:
    """The callback that reports to Weights & Biases, if `options` ask for it.

    Raises:
        SettingError: an option that it needs is missing, or the package is.
    """
    if options.wandb_project is None:
        if options.wandb_key or options.wandb_run_name:
            raise SettingError("--wandb-key and --wandb-run-name need --wandb-project")
        return []
    if find_spec("wandb") is None:
        raise SettingError("--wandb-project needs the package wandb; run `pip install wandb`")
    from ray.air.integrations.wandb import WandbLoggerCallback

    if options.wandb_key:
        # The callback does not get the key, because Tune stores callbacks with the results.
        os.environ["WANDB_API_KEY"] = options.wandb_key
    name: dict[str, Any] = {"name": options.wandb_run_name} if options.wandb_run_name else {}
    return [WandbLoggerCallback(project=options.wandb_project, **name)]


def failed_trials(grid: tune.ResultGrid) -> list[FailedTrial]:
    """The trials of `grid` that failed, each with its cause and its log."""
    return [
        FailedTrial(
            Path(result.path).name, _cause(result.error), str(Path(result.path, "error.txt"))
        )
        for result in map(grid.__getitem__, range(len(grid)))
        if result.error
    ]


def _cause(error: BaseException) -> str:
    """The message of the first exception, without Ray's wrappers and traceback."""
    while isinstance(cause := getattr(error, "cause", None), BaseException):
        error = cause
    lines = [line for line in str(error).splitlines() if line.strip()]
    if any(line.startswith("Traceback ") or "\x1b[36mray::" in line for line in lines):
        return lines[-1].strip()
    return f"{type(error).__name__}: {error}"


def evaluate_checkpoint(path: str, options: RayOptions | None = None) -> dict[str, float]:
    """Restore an algorithm and evaluate it once.

    Returns:
        metric (nested ones as `a/b`) -> number.

    Raises:
        SettingError: there is no checkpoint at `path`.
    """
    folder = Path(path).expanduser().absolute()
    if not (folder / "rllib_checkpoint.json").is_file():
        raise SettingError(
            f"{path} is not a checkpoint of an algorithm; give the folder that contains "
            "rllib_checkpoint.json (`rllib train` prints it at the end)"
        )
    import ray
    from ray.rllib.algorithms.algorithm import Algorithm
    from ray.tune.utils import flatten_dict

    started = _start_ray(options or RayOptions())
    try:
        algorithm = Algorithm.from_checkpoint(str(folder))
        try:
            flat = flatten_dict(algorithm.evaluate())
        finally:
            algorithm.stop()
    finally:
        if started:
            ray.shutdown()
    return {
        key: float(value)
        for key, value in flat.items()
        if hasattr(value, "__float__") and "timer" not in key
    }
