"""The `rllib` command: reads arguments and hands them on; everything else is elsewhere.

Exit codes: 0 all trials finished, 1 a trial failed, 2 the user's input is wrong (nothing
ran), 130 ctrl-C. Ray is imported after the arguments are understood, so `--help` is instant.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from rllib_dapo.cli.flags import Flags, from_command_line, with_flags
from rllib_dapo.cli.run import (
    Experiment,
    RunOptions,
    evaluate_checkpoint,
    failures,
    load_experiments,
    results_path,
    run_experiments,
)
from rllib_dapo.cli.transform.command import transform_dataset
from rllib_dapo.errors import DAPOError

app = typer.Typer(
    help="Train and evaluate RLlib algorithms, DAPO among them.",
    no_args_is_help=True,
    # Rich's help cuts the names of options off in a terminal of 80 columns.
    rich_markup_mode=None,
    # Its tracebacks show local variables, the wandb key among them.
    pretty_exceptions_enable=False,
)
train_app = typer.Typer(help="Train from a file, or from arguments alone.", rich_markup_mode=None)
example_app = typer.Typer(
    help="The experiment files that come with the package.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(train_app, name="train")
app.add_typer(example_app, name="example")

Stop = Annotated[str | None, typer.Option("--stop", "-s", help="JSON; replaces the file's stop.")]
CheckpointFreq = Annotated[int | None, typer.Option(min=0, help="Iterations; 0: none between.")]
CheckpointAtEnd = Annotated[
    bool | None, typer.Option("--checkpoint-at-end/--no-checkpoint-at-end", help="Last state.")
]
KeepCheckpoints = Annotated[int | None, typer.Option(min=1, help="Checkpoints to keep.")]
ScoreAttr = Annotated[str | None, typer.Option(help="Metric of the best ones; min-NAME: least.")]
Storage = Annotated[str | None, typer.Option(help="Folder or URI of results. [./results]")]
NumSamples = Annotated[int | None, typer.Option(min=-1, help="Repetitions of every variant.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="key=value of the config; repeat.")]
Scheduler = Annotated[str | None, typer.Option(help="Tune's scheduler, such as pbt.")]
SchedulerConfig = Annotated[str | None, typer.Option(help="JSON, its arguments.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted experiment.")]
Verbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, help="-v: workers' output; -vv: everything.")
]
RayAddress = Annotated[str | None, typer.Option(help="A running cluster, or auto.")]
RayCpus = Annotated[int | None, typer.Option(min=0)]
RayGpus = Annotated[int | None, typer.Option(min=0)]
RayMemory = Annotated[int | None, typer.Option(min=1, help="Bytes.")]
Check = Annotated[
    bool,
    typer.Option(
        "--check-cluster/--no-check-cluster",
        help="Refuse trials larger than the cluster; off for clusters that grow.",
    ),
]
WandbProject = Annotated[str | None, typer.Option(help="Report to Weights & Biases.")]
WandbKey = Annotated[str | None, typer.Option(help="Better: the variable WANDB_API_KEY.")]
WandbName = Annotated[str | None, typer.Option(help="The run's name there.")]


@app.callback(invoke_without_command=True)
def root(
    show_version: Annotated[bool, typer.Option("--version", help="Versions, then exit.")] = False,
) -> None:
    """Train and evaluate RLlib algorithms, DAPO among them."""
    if show_version:
        for package in ("rllib-dapo", "ray"):
            typer.echo(f"{package} {_version(package)}")
        raise typer.Exit


@train_app.command("file")
def train_file(
    config_file: Annotated[str, typer.Argument(metavar="CONFIG", help=".yaml, .yml or .py")],
    stop: Stop = None,
    checkpoint_freq: CheckpointFreq = None,
    checkpoint_at_end: CheckpointAtEnd = None,
    keep_checkpoints_num: KeepCheckpoints = None,
    checkpoint_score_attr: ScoreAttr = None,
    storage_path: Storage = None,
    num_samples: NumSamples = None,
    settings: Set = None,
    scheduler: Scheduler = None,
    scheduler_config: SchedulerConfig = None,
    resume: Resume = False,
    ray_address: RayAddress = None,
    ray_num_cpus: RayCpus = None,
    ray_num_gpus: RayGpus = None,
    ray_object_store_memory: RayMemory = None,
    check_cluster: Check = True,
    wandb_project: WandbProject = None,
    wandb_key: WandbKey = None,
    wandb_run_name: WandbName = None,
    verbosity: Verbose = 0,
) -> None:
    """Run the experiments of a file. Flags that are not given leave the file as it is."""
    given = locals()
    flags = _flags(given)
    _train(
        lambda: [with_flags(experiment, flags) for experiment in load_experiments(config_file)],
        _options(given),
    )


@train_app.callback(invoke_without_command=True)
def train(
    context: typer.Context,
    run: Annotated[str, typer.Option("--run", "--algo", help="The algorithm.")] = "DAPO",
    env: Annotated[str | None, typer.Option("--env", "-e", help="The environment.")] = None,
    config: Annotated[str | None, typer.Option("--config", help="JSON: settings.")] = None,
    experiment_name: Annotated[str | None, typer.Option(help="Folder of the results.")] = None,
    restore: Annotated[str | None, typer.Option(help="Start from this checkpoint.")] = None,
    stop: Stop = None,
    checkpoint_freq: CheckpointFreq = None,
    checkpoint_at_end: CheckpointAtEnd = None,
    keep_checkpoints_num: KeepCheckpoints = None,
    checkpoint_score_attr: ScoreAttr = None,
    storage_path: Storage = None,
    num_samples: NumSamples = None,
    settings: Set = None,
    scheduler: Scheduler = None,
    scheduler_config: SchedulerConfig = None,
    resume: Resume = False,
    ray_address: RayAddress = None,
    ray_num_cpus: RayCpus = None,
    ray_num_gpus: RayGpus = None,
    ray_object_store_memory: RayMemory = None,
    check_cluster: Check = True,
    wandb_project: WandbProject = None,
    wandb_key: WandbKey = None,
    wandb_run_name: WandbName = None,
    verbosity: Verbose = 0,
) -> None:
    """Train from a file (`rllib train file`), or from --run, --env and --config alone."""
    given = locals()
    typed = [name for name in context.params if _was_given(context, name)]
    if context.invoked_subcommand:
        if typed:
            _refuse("options of `rllib train file` come after the file's name")
        return
    if not typed:
        typer.echo(context.get_help())
        raise typer.Exit(2)
    flags = _flags(given)
    _train(
        lambda: [from_command_line(run, env, config, experiment_name, flags, restore)],
        _options(given),
    )


@app.command()
def evaluate(
    checkpoint: Annotated[str, typer.Argument(help="Folder of an algorithm's checkpoint.")],
    out: Annotated[Path | None, typer.Option(help="Also write the numbers to this JSON.")] = None,
    ray_address: RayAddress = None,
    ray_num_cpus: RayCpus = None,
    ray_num_gpus: RayGpus = None,
    ray_object_store_memory: RayMemory = None,
    verbosity: Verbose = 0,
) -> None:
    """Evaluate a checkpoint once, with the evaluation settings it was trained with."""
    options = _options(locals())
    with _reported(verbosity):
        numbers = evaluate_checkpoint(checkpoint, options)
        for name, value in sorted(numbers.items()):
            typer.echo(f"{name:<50} {value:.6g}")
        if out is not None:
            out.write_text(json.dumps(numbers, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@app.command("transform-dataset")
@wraps(transform_dataset)
def _transform_dataset(**arguments: Any) -> None:
    with _reported(0):
        transform_dataset(**arguments)


@example_app.command("list")
def example_list() -> None:
    """Name the examples, with what each is about."""
    from rllib_dapo.cli.examples import example_files, title

    with _reported(0):
        for name, path in example_files().items():
            typer.echo(f"{name:<40} {title(path)}")


@example_app.command("get")
def example_get(name: Annotated[str, typer.Argument(help="As in `rllib example list`.")]) -> None:
    """Print an example, to redirect into a file of your own."""
    from rllib_dapo.cli.examples import example_file

    with _reported(0):
        typer.echo(example_file(name).read_text(encoding="utf-8"), nl=False)


@example_app.command("run")
def example_run(
    name: Annotated[str, typer.Argument(help="As in `rllib example list`.")],
    stop: Stop = None,
    settings: Set = None,
    storage_path: Storage = None,
    resume: Resume = False,
    verbosity: Verbose = 0,
) -> None:
    """Run an example."""
    from rllib_dapo.cli.examples import example_file

    given = locals()
    flags = _flags(given)
    _train(
        lambda: [with_flags(e, flags) for e in load_experiments(example_file(name))],
        _options(given),
    )


def _flags(given: dict[str, Any]) -> Flags:
    names = Flags.__dataclass_fields__.keys() & given.keys()
    values = {name: given[name] for name in names}
    return Flags(**{**values, "settings": tuple(given.get("settings") or ())})


def _options(given: dict[str, Any]) -> RunOptions:
    return RunOptions(
        **{n: given[n] for n in RunOptions.__dataclass_fields__.keys() & given.keys()}
    )


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _train(load: Callable[[], Sequence[Experiment]], options: RunOptions) -> None:
    """Run what `load` gives; ends the process with the exit code of the outcome."""
    experiments: Sequence[Experiment] = ()
    failed = False
    try:
        with _reported(options.verbosity):
            experiments = load()
            for grid in run_experiments(experiments, options):
                for failure in failures(grid):
                    failed = True
                    _error(f"trial {failure.trial}: {failure.message}\n  full log: {failure.log}")
    except KeyboardInterrupt:
        where = ", ".join(results_path(experiment) for experiment in experiments)
        _error(
            f"Stopped. Results so far: {where or 'none'}\n"
            "The same command with --resume goes on from the last checkpoints, or from the "
            "start where there is none."
        )
        raise typer.Exit(130) from None
    if failed:
        raise typer.Exit(1)


@contextmanager
def _reported(verbosity: int) -> Iterator[None]:
    """Turn what is wrong with the input into one message and exit code 2."""
    try:
        yield
    except DAPOError as error:
        if verbosity > 1:
            traceback.print_exception(error)
        _refuse(str(error))


def _refuse(message: str) -> NoReturn:
    _error(message)
    raise typer.Exit(2)


def _error(message: str) -> None:
    Console(stderr=True, highlight=False).print(f"[red]{escape(message)}[/]", soft_wrap=True)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"


def main() -> None:
    """Entry point of the `rllib` command."""
    app()
