"""From experiments to results: check, start Ray, run with Tune.

Several experiments of one file run one after the other (the trials of one run side by side,
as the machine allows): each gets the whole machine, and an early failure is seen early. All
of them are checked before the first one starts. Ray is imported inside the functions, so
that reading and checking a command line costs nothing.
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

from rllib_dapo.cli.check import check_resources, trial_request, validate
from rllib_dapo.cli.experiment_file import Experiment, load_experiments, parse_experiments
from rllib_dapo.cli.tuner import results_path, to_tuner
from rllib_dapo.errors import SettingError

if TYPE_CHECKING:
    from ray import tune

__all__ = [
    "Experiment",
    "Failure",
    "RunOptions",
    "check_resources",
    "evaluate_checkpoint",
    "failures",
    "load_experiments",
    "parse_experiments",
    "results_path",
    "run_experiments",
    "to_tuner",
    "validate",
]


@dataclass(frozen=True)
class RunOptions:
    """How to run, as opposed to what.

    Args:
        verbosity: 0: one line per iteration; 1: also what workers print; 2: also Tune's own
            reports and tracebacks.
        resume: continue the experiment of the same name and storage, if there is one.
        ray_address: a running cluster; the other `ray_` options describe a local one.
        ray_object_store_memory: bytes.
        check_cluster: refuse trials larger than the cluster. Off: for clusters that grow.
        wandb_project: report to Weights & Biases; `wandb_key` goes into the environment only,
            never into a file.
    """

    verbosity: int = 0
    resume: bool = False
    ray_address: str | None = None
    ray_num_cpus: int | None = None
    ray_num_gpus: int | None = None
    ray_object_store_memory: int | None = None
    check_cluster: bool = True
    wandb_project: str | None = None
    wandb_key: str | None = None
    wandb_run_name: str | None = None


@dataclass(frozen=True)
class Failure:
    """A trial that failed: its folder's name, the cause in a line or so, the full log."""

    trial: str
    message: str
    log: str


def run_experiments(
    experiments: Sequence[Experiment], options: RunOptions | None = None
) -> list[tune.ResultGrid]:
    """Check all experiments, then run them one after the other.

    Raises:
        ExperimentFileError, SettingError: before anything runs.
        KeyboardInterrupt: the user stopped it; Tune has saved where it was.
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
            line_printer = console.iteration_callback(experiment.run_name)
            tuner = to_tuner(
                experiment,
                verbosity=options.verbosity,
                resume=options.resume,
                callbacks=[line_printer, *callbacks],
            )
            grid, interrupted = _fit(tuner)
            console.summarise(grid, interrupted)
            if interrupted:
                raise KeyboardInterrupt
            grids.append(grid)
        return grids
    finally:
        if started:
            ray.shutdown()


def _fit(tuner: tune.Tuner) -> tuple[tune.ResultGrid, bool]:
    """Run; also says whether ctrl-C ended it.

    Tune answers the first ctrl-C by saving its state and returning as if all were done. What
    gives it away is its signal handler: called, it puts back the one it found; otherwise it
    stays, and is in the way of the next run, so that it is removed here.
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
    """What to say about earlier runs of the same name."""
    from ray import tune

    if tune.Tuner.can_restore(results_path(experiment)):
        if options.resume:
            return "resumed, with the settings it was started with"
        return "new trials beside earlier ones of this name (--resume would continue those)"
    return "nothing to resume, starting" if options.resume else None


def _nodes() -> list[dict[str, float]]:
    """What each living node of the cluster has in total."""
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()
    return [node["Resources"] for node in nodes if node["Alive"]]


def _start_ray(options: RunOptions) -> bool:
    """Start or join Ray unless it runs; whether it was started here.

    Raises:
        SettingError: the options contradict each other, or the cluster cannot be reached.
    """
    import ray

    from rllib_dapo.algorithm.registration import register

    # Paths in a config are relative to where the command was given, not to a trial's folder.
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
    """Keep Tune from printing what `console` and `failures` say in a line."""
    # Its newer reports come even with verbose=0; the older ones do not.
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    # A failed trial's traceback is in its error.txt; the cause is shown at the end.
    logging.getLogger("ray.tune.execution.tune_controller").setLevel(logging.CRITICAL)
    logging.getLogger("ray.tune.tune").addFilter(_is_news)
    # That a failed trial has no results is said in our own summary.
    logging.getLogger("ray.tune.analysis.experiment_analysis").setLevel(logging.ERROR)
    # Ray explains its token authentication at every start.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.msg.startswith(("Trials did not complete", "Experiment has been interrupted"))


def _wandb(options: RunOptions) -> list[tune.Callback]:
    """The Weights & Biases callback, if asked for.

    Raises:
        SettingError: options that need each other, or the package is missing.
    """
    if options.wandb_project is None:
        if options.wandb_key or options.wandb_run_name:
            raise SettingError("--wandb-key and --wandb-run-name need --wandb-project")
        return []
    if find_spec("wandb") is None:
        raise SettingError("--wandb-project needs the package wandb; run `pip install wandb`")
    from ray.air.integrations.wandb import WandbLoggerCallback

    if options.wandb_key:
        # Not an argument of the callback: Tune stores callbacks beside the results.
        os.environ["WANDB_API_KEY"] = options.wandb_key
    name: dict[str, Any] = {"name": options.wandb_run_name} if options.wandb_run_name else {}
    return [WandbLoggerCallback(project=options.wandb_project, **name)]


def failures(grid: tune.ResultGrid) -> list[Failure]:
    """The trials that failed, with what their users need to know."""
    return [
        Failure(Path(result.path).name, _cause(result.error), str(Path(result.path, "error.txt")))
        for result in map(grid.__getitem__, range(len(grid)))
        if result.error
    ]


def _cause(error: BaseException) -> str:
    """What went wrong, without Ray's layers and traceback."""
    while isinstance(cause := getattr(error, "cause", None), BaseException):
        error = cause
    lines = [line for line in str(error).splitlines() if line.strip()]
    if any(line.startswith("Traceback ") or "\x1b[36mray::" in line for line in lines):
        return lines[-1].strip()
    return f"{type(error).__name__}: {error}"


def evaluate_checkpoint(path: str, options: RunOptions | None = None) -> dict[str, float]:
    """Restore an algorithm and evaluate it once.

    Returns:
        metric (nested ones as `a/b`) -> number.

    Raises:
        SettingError: there is no checkpoint at `path`.
    """
    folder = Path(path).expanduser().absolute()
    if not (folder / "rllib_checkpoint.json").is_file():
        raise SettingError(
            f"{path} is no checkpoint of an algorithm; give the folder that holds "
            "rllib_checkpoint.json (`rllib train` prints it at the end)"
        )
    import ray
    from ray.rllib.algorithms.algorithm import Algorithm
    from ray.tune.utils import flatten_dict

    started = _start_ray(options or RunOptions())
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
