"""The `rllib` command: it reads the arguments and calls the modules that do the work.

Exit codes: 0 if all trials finished, 1 if a trial failed, 2 if the user's input is wrong (then
nothing ran), 130 after ctrl-C. RLlib, torch and vLLM are imported only by the commands that
need them, so that `--help` is quick.
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

from rllib_dapo.cli.check_data import check_data
from rllib_dapo.cli.examples import example_file, example_files, title
from rllib_dapo.cli.experiment_file import Experiment, load_experiments
from rllib_dapo.cli.flags import (
    Flags,
    PlanOptions,
    RayOptions,
    RunOptions,
    from_command_line,
    takes,
    with_flags,
)
from rllib_dapo.cli.run import evaluate_checkpoint, failed_trials, run_experiments
from rllib_dapo.cli.transform.command import transform_dataset
from rllib_dapo.cli.tuner import results_path
from rllib_dapo.errors import DAPOError

app = typer.Typer(
    help="Train and evaluate RLlib algorithms, DAPO among them.",
    no_args_is_help=True,
    # Rich's help cuts off the names of options in a terminal of 80 columns.
    rich_markup_mode=None,
    # Rich's tracebacks show local variables, and the wandb key is one of them.
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


@app.callback(invoke_without_command=True)
def root(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the versions and exit.")
    ] = False,
) -> None:
    """Train and evaluate RLlib algorithms, DAPO among them."""
    if show_version:
        for package in ("rllib-dapo", "ray"):
            typer.echo(f"{package} {_version(package)}")
        raise typer.Exit


@train_app.command("file")
@takes(Flags, RunOptions)
def train_file(
    config_file: Annotated[
        str, typer.Argument(metavar="CONFIG", help="Experiment file: .yaml, .yml or .py")
    ],
    flags: Flags,
    options: RunOptions,
) -> None:
    """Run the experiments of a file. Flags that are not given leave the file as it is."""
    _train(lambda: [with_flags(e, flags) for e in load_experiments(config_file)], options)


@train_app.callback(invoke_without_command=True)
@takes(Flags, RunOptions)
def train(
    context: typer.Context,
    flags: Flags,
    options: RunOptions,
    run: Annotated[str, typer.Option("--run", "--algo", help="The algorithm.")] = "DAPO",
    env: Annotated[str | None, typer.Option("--env", "-e", help="The environment.")] = None,
    config: Annotated[str | None, typer.Option(help="JSON: settings of the algorithm.")] = None,
    experiment_name: Annotated[
        str | None, typer.Option(help="Folder of the results. [the algorithm's name]")
    ] = None,
    restore: Annotated[str | None, typer.Option(help="Start from this checkpoint.")] = None,
) -> None:
    """Train from a file (`rllib train file`), or from --run, --env and --config alone."""
    typed = [name for name in context.params if _was_given(context, name)]
    if context.invoked_subcommand:
        if typed:
            _refuse("the options of `rllib train file` come after the file's name")
        return
    if not typed:
        typer.echo(context.get_help())
        raise typer.Exit(2)
    _train(lambda: [from_command_line(run, env, config, experiment_name, flags, restore)], options)


@app.command()
@takes(RayOptions)
def evaluate(
    checkpoint: Annotated[str, typer.Argument(help="Folder of an algorithm's checkpoint.")],
    options: RayOptions,
    out: Annotated[
        Path | None, typer.Option(help="Also write the numbers to this JSON file.")
    ] = None,
) -> None:
    """Evaluate a checkpoint once, with the evaluation settings it was trained with."""
    with _reported(options.verbosity):
        numbers = evaluate_checkpoint(checkpoint, options)
        for name, value in sorted(numbers.items()):
            typer.echo(f"{name:<50} {value:.6g}")
        if out is not None:
            out.write_text(json.dumps(numbers, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@app.command("plan")
@takes(Flags, PlanOptions)
def plan_file(
    config_file: Annotated[
        str, typer.Argument(metavar="CONFIG", help="Experiment file: .yaml, .yml or .py")
    ],
    flags: Flags,
    options: PlanOptions,
) -> None:
    """Print the actors, memory, tokens and bytes that a run would take; nothing is started.

    It takes the flags of `rllib train file`. A plan that cannot fit ends with exit code 2.
    """
    from rllib_dapo.cli.plan import plan, show

    with _reported(0):
        plans = [plan(with_flags(e, flags), options) for e in load_experiments(config_file)]
        show(plans, as_json=options.as_json)
        if problems := [f"{one.name}: {problem}" for one in plans for problem in one.problems]:
            _refuse("\n".join(problems))


@app.command("check-data")
@wraps(check_data)
def _check_data(**arguments: Any) -> None:
    with _reported(0):
        check_data(**arguments)


@app.command("transform-dataset")
@wraps(transform_dataset)
def _transform_dataset(**arguments: Any) -> None:
    with _reported(0):
        transform_dataset(**arguments)


@example_app.command("list")
def example_list() -> None:
    """List the names of the examples and what each is about."""
    with _reported(0):
        for name, path in example_files().items():
            typer.echo(f"{name:<40} {title(path)}")


@example_app.command("get")
def example_get(
    name: Annotated[str, typer.Argument(help="A name from `rllib example list`.")],
) -> None:
    """Print an example, so that you can redirect it into a file of your own."""
    with _reported(0):
        typer.echo(example_file(name).read_text(encoding="utf-8"), nl=False)


@example_app.command("run")
@takes(Flags, RunOptions)
def example_run(
    name: Annotated[str, typer.Argument(help="A name from `rllib example list`.")],
    flags: Flags,
    options: RunOptions,
) -> None:
    """Run an example. It takes the flags of `rllib train file`."""
    _train(lambda: [with_flags(e, flags) for e in load_experiments(example_file(name))], options)


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _train(load: Callable[[], Sequence[Experiment]], options: RunOptions) -> None:
    """Run the experiments that `load` returns; exit with 1 or 130 if they did not all finish."""
    experiments: Sequence[Experiment] = ()
    failed = False
    try:
        with _reported(options.verbosity):
            experiments = load()
            for grid in run_experiments(experiments, options):
                for failure in failed_trials(grid):
                    failed = True
                    _error(f"trial {failure.trial}: {failure.message}\n  full log: {failure.log}")
    except KeyboardInterrupt:
        where = ", ".join(results_path(experiment) for experiment in experiments)
        _error(
            f"Stopped. Results so far: {where or 'none'}\n"
            "The same command with --resume continues from the last checkpoints, or from the "
            "start where there is none."
        )
        raise typer.Exit(130) from None
    if failed:
        raise typer.Exit(1)


@contextmanager
def _reported(verbosity: int) -> Iterator[None]:
    """Report an error in the input as one message, and exit with code 2."""
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
