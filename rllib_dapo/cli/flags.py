"""The flags of `rllib train`: the options themselves, and what they change in an experiment.

The fields of `Flags` and `RunOptions` are the options: their names, types, defaults and help
texts. `takes` gives them to a command, so that several commands can share them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Annotated, Any, NoReturn, get_type_hints

import typer

from rllib_dapo.cli.experiment_file import Experiment, flat_stop
from rllib_dapo.cli.yaml_lines import parse
from rllib_dapo.errors import ExperimentFileError


@dataclass(frozen=True)
class Flags:
    """What the command line changes in an experiment. A flag that is None changes nothing."""

    stop: Annotated[
        str | None,
        typer.Option("--stop", "-s", help="JSON that replaces the whole `stop` of the file."),
    ] = None
    checkpoint_freq: Annotated[
        int | None,
        typer.Option(min=0, help="Iterations between two checkpoints; 0: none between."),
    ] = None
    checkpoint_at_end: Annotated[
        bool | None,
        typer.Option(
            "--checkpoint-at-end/--no-checkpoint-at-end", help="Whether to save when a trial ends."
        ),
    ] = None
    keep_checkpoints_num: Annotated[
        int | None, typer.Option(min=1, help="How many checkpoints to keep of each trial.")
    ] = None
    checkpoint_score_attr: Annotated[
        str | None,
        typer.Option(help="Keep those with the highest value of this metric; min-NAME: lowest."),
    ] = None
    storage_path: Annotated[
        str | None, typer.Option(help="Folder or URI for the results. [./results]")
    ] = None
    num_samples: Annotated[
        int | None, typer.Option(min=-1, help="Trials of each variant; -1: no end.")
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE, a setting under `config`; may be repeated."),
    ] = None
    scheduler: Annotated[
        str | None, typer.Option(help="One of Tune's schedulers, such as pbt.")
    ] = None
    scheduler_config: Annotated[
        str | None, typer.Option(help="JSON, the arguments of the scheduler.")
    ] = None


@dataclass(frozen=True)
class RayOptions:
    """Where to run, and how much to print."""

    ray_address: Annotated[
        str | None, typer.Option(help="Address of a running cluster, or auto.")
    ] = None
    ray_num_cpus: Annotated[int | None, typer.Option(min=0, help="CPUs of a local cluster.")] = None
    ray_num_gpus: Annotated[int | None, typer.Option(min=0, help="GPUs of a local cluster.")] = None
    ray_object_store_memory: Annotated[
        int | None, typer.Option(min=1, help="Bytes for the object store of a local cluster.")
    ] = None
    verbosity: Annotated[
        int,
        typer.Option(
            "-v",
            "--verbose",
            count=True,
            help="-v: also what workers print; -vv: also Tune's reports and tracebacks.",
        ),
    ] = 0


@dataclass(frozen=True)
class RunOptions(RayOptions):
    """How to run experiments, as opposed to which.

    `wandb_key` is put into the environment only, never into a file.
    """

    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted experiment.")
    ] = False
    check_cluster: Annotated[
        bool,
        typer.Option(
            "--check-cluster/--no-check-cluster",
            help="Refuse trials larger than the cluster; off for clusters that grow.",
        ),
    ] = True
    wandb_project: Annotated[
        str | None, typer.Option(help="Report to this project of Weights & Biases.")
    ] = None
    wandb_key: Annotated[
        str | None, typer.Option(help="Better: set the variable WANDB_API_KEY.")
    ] = None
    wandb_run_name: Annotated[
        str | None, typer.Option(help="The run's name in Weights & Biases.")
    ] = None


@dataclass(frozen=True)
class PlanOptions:
    """What the settings do not say: lengths, rates and the memory of a GPU."""

    gpu_memory_gib: Annotated[
        float | None,
        typer.Option(min=0.1, help="Memory of a GPU; a plan that does not fit is refused."),
    ] = None
    prompt_tokens: Annotated[
        float | None, typer.Option(min=1, help="Mean length of prompts. [half of the limit]")
    ] = None
    completion_tokens: Annotated[
        float | None, typer.Option(min=1, help="Mean length of completions. [half of the limit]")
    ] = None
    keep_rate: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=1, help="Share of groups kept. [0.5 with dynamic sampling, else 1]"
        ),
    ] = None
    runner_tokens_per_s: Annotated[
        float | None, typer.Option(min=0.001, help="Tokens a second that one runner samples.")
    ] = None
    learner_tflops: Annotated[
        float | None, typer.Option(min=1e-9, help="10^12 operations a second of one learner.")
    ] = None
    network_gib_per_s: Annotated[
        float | None, typer.Option(min=1e-9, help="GiB a second from learners to a runner.")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


def takes(*groups: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each field of the dataclasses `groups`.

    The command itself has one argument for each group, annotated with it, in place of one for
    each option.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        shared = {name: kind for name, kind in hints.items() if kind in groups}
        parameters = [
            parameter.replace(annotation=hints[name])
            for name, parameter in inspect.signature(command).parameters.items()
            if name not in shared
        ]
        for group in shared.values():
            types = get_type_hints(group, include_extras=True)
            parameters += [
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=field.default,
                    annotation=types[field.name],
                )
                for field in fields(group)
            ]

        @wraps(command)
        def with_groups(**given: Any) -> None:
            for name, group in shared.items():
                given[name] = group(
                    **{field.name: given.pop(field.name) for field in fields(group)}
                )
            command(**given)

        # Typer reads a command's options from these two.
        with_groups.__annotations__ = {p.name: p.annotation for p in parameters}
        with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return with_groups

    return decorate


def with_flags(experiment: Experiment, flags: Flags) -> Experiment:
    """A copy of the experiment, changed as the flags say.

    Raises:
        ExperimentFileError: a flag is wrong; the message names it, what was found and the
            remedy.
    """
    if flags.num_samples == 0:
        raise ExperimentFileError("--num-samples 0 runs nothing; write 1 or more, or -1 (no end)")
    changes: dict[str, Any] = {
        "storage_path": flags.storage_path,
        "num_samples": flags.num_samples,
        "scheduler": flags.scheduler,
    }
    if flags.scheduler_config is not None:
        changes["scheduler_config"] = mapping(flags.scheduler_config, "--scheduler-config")
    elif flags.scheduler is not None:
        # The arguments in the file belong to the scheduler that the flag replaces.
        changes["scheduler_config"] = {}
    if flags.stop is not None:
        changes["stop"] = flat_stop(mapping(flags.stop, "--stop"), _fail_stop)
    changes["checkpoint_config"] = {**experiment.checkpoint_config, **_checkpoint(flags)}
    if flags.settings:
        changes["config"], changes["flags"] = _with_settings(experiment.config, flags.settings)
    return replace(experiment, **{k: v for k, v in changes.items() if v is not None})


def from_command_line(
    run: str,
    env: str | None,
    config: str | None,
    name: str | None,
    flags: Flags,
    restore: str | None = None,
) -> Experiment:
    """An experiment without a file.

    Args:
        run: the name of the algorithm.
        env: the environment.
        config: the settings of the algorithm, as JSON.
        name: the name of the experiment; None takes that of the algorithm.
        flags: the other flags.
        restore: the checkpoint folder to start from.

    Raises:
        ExperimentFileError: a flag is wrong; the message names it, what was found and the
            remedy.
    """
    settings = mapping(config, "--config") if config is not None else {}
    if env is not None:
        settings["env"] = env
    title = name or run
    if "/" in title or title in (".", "..") or not title.strip():
        raise ExperimentFileError(f"--experiment-name {title!r} cannot name a folder of results")
    return with_flags(Experiment(name=title, run=run, config=settings, restore=restore), flags)


def mapping(text: str, flag: str) -> dict[str, Any]:
    """Read the mapping in a flag, which is JSON or YAML.

    Raises:
        ExperimentFileError: `text` is not a mapping.
    """
    data = parse(text, flag).data
    if not isinstance(data, dict):
        raise ExperimentFileError(f"{flag}: {text!r} is not a mapping; write '{{\"name\": value}}'")
    return data


def _fail_stop(path: tuple[Any, ...], message: str) -> NoReturn:
    raise ExperimentFileError(f"--stop: {message}")


def _checkpoint(flags: Flags) -> dict[str, Any]:
    """The keys of `checkpoint_config` that the flags give."""
    given: dict[str, Any] = {
        "checkpoint_frequency": flags.checkpoint_freq,
        "checkpoint_at_end": flags.checkpoint_at_end,
        "num_to_keep": flags.keep_checkpoints_num,
    }
    if flags.checkpoint_score_attr is not None:
        attribute = flags.checkpoint_score_attr
        given["checkpoint_score_attribute"] = attribute.removeprefix("min-")
        given["checkpoint_score_order"] = "min" if attribute.startswith("min-") else "max"
    return {key: value for key, value in given.items() if value is not None}


def _with_settings(
    config: Mapping[str, Any], settings: Sequence[str]
) -> tuple[dict[str, Any], frozenset[str]]:
    """Apply `key=value` settings; returns a copy of `config` and the keys that were set.

    Raises:
        ExperimentFileError: a setting is not `key=value`, or a part of its key names a value
            that has no keys.
    """
    changed = dict(config)
    names = set()
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not all(name.split(".")):
            raise ExperimentFileError(f"--set {setting}: write --set key=value")
        value = parse(text, f"--set {name}").data
        *outer, last = name.split(".")
        level = changed
        for part in outer:
            inner = level.get(part, {})
            if not isinstance(inner, dict):
                raise ExperimentFileError(f"--set {name}: `{part}` is {inner!r}, without keys")
            # Each level is copied, so that the experiment that was given stays as it is.
            level[part] = dict(inner)
            level = level[part]
        level[last] = value
        names.add(name)
    return changed, frozenset(names)
