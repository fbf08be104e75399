"""`rllib plan FILE`: what a run would take, without starting anything.

The settings are checked, the model is counted from its configuration alone, and the data is not
read. So a run for a cluster can be planned on a laptop.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from rllib_dapo.algorithm.config import DAPOBaseConfig
from rllib_dapo.cli import budget, search_space
from rllib_dapo.cli.budget import GIB, Assumptions
from rllib_dapo.cli.check import algorithm_class
from rllib_dapo.cli.experiment_file import Experiment
from rllib_dapo.cli.flags import PlanOptions
from rllib_dapo.errors import ExperimentFileError, SettingError
from rllib_dapo.model.facts import load_config, model_path
from rllib_dapo.model.lora import check_lora, lora_options
from rllib_dapo.model.size import LayerActivations, ModelSize, layer_activations, model_size
from rllib_dapo.settings.checks import check_settings
from rllib_dapo.settings.choices import ComputeDtype


@dataclass(frozen=True)
class Plan:
    """What one experiment takes; bytes where nothing else is said.

    Attributes:
        name: of the experiment.
        model: as the file names it.
        parameters: of the model.
        actors: (what, how many, CPUs of each, GPUs of each).
        learner: bytes of one learner, by what they hold; empty where they cannot be counted.
        engine: the memory of an engine on each GPU.
        completions_at_once: (mean length, longest) sequences that the cache holds.
        step: tokens, operations and bytes of one step.
        seconds: of a step, by phase.
        assumptions: what was assumed.
        problems: what does not fit, each with its remedies.
        notes: what could not be counted.
    """

    name: str
    model: str
    parameters: int
    actors: Sequence[tuple[str, int, float, float]]
    learner: Mapping[str, float]
    engine: budget.EngineMemory
    completions_at_once: tuple[int | None, int | None]
    step: budget.Step
    seconds: Mapping[str, float]
    assumptions: Assumptions
    problems: Sequence[str]
    notes: Sequence[str]


def plan(experiment: Experiment, options: PlanOptions) -> Plan:
    """Plan the first variant of an experiment.

    Raises:
        ExperimentFileError: a setting is wrong, or the model's configuration cannot be read.
    """
    try:
        return _plan(experiment, _settings(experiment), options)
    except SettingError as error:
        raise ExperimentFileError(experiment.located(str(error), error.setting)) from error


def _settings(experiment: Experiment) -> Any:
    """The settings of the first variant, checked against each other only."""
    config = algorithm_class(experiment).get_default_config()
    if not isinstance(config, DAPOBaseConfig):
        raise ExperimentFileError(
            experiment.located(f"run: {experiment.run_name}: only DAPO can be planned", key="run")
        )
    config.update_from_dict(next(iter(search_space.variants(dict(experiment.config)))))
    check_settings(config)
    return config


def _plan(experiment: Experiment, settings: Any, options: PlanOptions) -> Plan:
    path = model_path(settings.language_model)
    model_config = load_config(path, trust_remote_code=settings.trust_remote_code)
    size, given = model_size(model_config), _assumptions(settings, options)
    trained = None
    if settings.lora_rank is not None:
        trained = check_lora(model_config, **lora_options(settings))
    layout = budget.learner_layout(settings, size, trained)
    notes: list[str] = []
    problems: list[str] = []
    memory: dict[str, float] = {}
    layer = _layer_counter(model_config)
    try:
        memory = budget.learner_memory(layout, size, layer(layout))
        problems += _learner_problem(settings, layout, size, layer, memory, given)
    except SettingError as error:
        notes.append(str(error))
    engine = budget.engine_memory(settings, size, given.gpu_memory_gib)
    longest = settings.max_prompt_length + settings.max_completion_length
    at_once = (
        engine.completions(given.prompt_tokens + given.completion_tokens),
        engine.completions(longest),
    )
    problems += _engine_problem(settings, engine, at_once[1], longest, given)
    work = budget.step(settings, size, given)
    return Plan(
        name=experiment.name,
        model=settings.language_model,
        parameters=size.parameters,
        actors=_actors(settings),
        learner=memory,
        engine=engine,
        completions_at_once=at_once,
        step=work,
        seconds=budget.seconds(settings, work, given),
        assumptions=given,
        problems=problems,
        notes=notes,
    )


def _layer_counter(model_config: Any) -> Callable[[budget.LearnerLayout], LayerActivations]:
    """A function that counts what a layer keeps in a layout, each number format once."""

    @cache
    def count(*, half: bool, sharded: bool) -> LayerActivations:
        if half and sharded:  # The weights are gathered in the format in which it computes.
            return layer_activations(model_config, weights=torch.bfloat16, compute_dtype="float32")
        compute_dtype: ComputeDtype = "bfloat16" if half else "float32"
        return layer_activations(model_config, weights=torch.float32, compute_dtype=compute_dtype)

    return lambda layout: count(half=layout.half, sharded=layout.sharded)


def _assumptions(settings: Any, options: PlanOptions) -> Assumptions:
    default_rate = 0.5 if settings.dynamic_sampling else 1.0
    return Assumptions(
        prompt_tokens=options.prompt_tokens or settings.max_prompt_length / 2,
        completion_tokens=options.completion_tokens or settings.max_completion_length / 2,
        keep_rate=options.keep_rate or default_rate,
        gpu_memory_gib=options.gpu_memory_gib,
        runner_tokens_per_s=options.runner_tokens_per_s,
        learner_tflops=options.learner_tflops,
        network_gib_per_s=options.network_gib_per_s,
    )


def _actors(settings: Any) -> list[tuple[str, int, float, float]]:
    actors = [("driver", 1, float(settings.num_cpus_for_main_process), 0.0)]
    runner = (float(settings.num_cpus_per_env_runner), float(settings.num_gpus_per_env_runner))
    if settings.num_env_runners:
        actors.append(("env runner (engine)", settings.num_env_runners, *runner))
    if settings.num_learners:
        cpus = settings.num_cpus_per_learner
        gpus = float(settings.num_gpus_per_learner)
        actors.append(("learner", settings.num_learners, 1.0 if cpus == "auto" else cpus, gpus))
    return actors


def _learner_problem(
    settings: Any,
    layout: budget.LearnerLayout,
    size: ModelSize,
    layer: Callable[[budget.LearnerLayout], LayerActivations],
    memory: Mapping[str, float],
    given: Assumptions,
) -> list[str]:
    if given.gpu_memory_gib is None or not settings.num_gpus_per_learner:
        return []
    share = min(1.0, settings.num_gpus_per_learner) * given.gpu_memory_gib * GIB
    if memory["peak"] <= share:
        return []
    longest = settings.max_prompt_length + settings.max_completion_length
    remedies = budget.learner_remedies(layout, size, layer, longest, share)
    advice = (
        f"any one of these would do: {', '.join(remedies)}"
        if remedies
        else "no single change does; shard it over more learners (`shard_model`, `num_learners`) "
        "and set `gradient_checkpointing` and `compute_dtype: bfloat16`"
    )
    return [
        f"a learner needs {memory['peak'] / GIB:.1f} GiB and has {share / GIB:.1f} GiB of a GPU; "
        + advice
    ]


def _engine_problem(
    settings: Any,
    engine: budget.EngineMemory,
    at_once: int | None,
    longest: int,
    given: Assumptions,
) -> list[str]:
    if at_once is None or at_once >= 1:
        return []
    where = "max_prompt_length and max_completion_length"
    if not settings.num_gpus_per_env_runner:
        return [
            f"kv_cache_gib={settings.kv_cache_gib:g} does not hold one sequence of {longest} "
            f"tokens ({engine.token * longest / GIB:.2f} GiB); raise it, or lower {where}"
        ]
    return [
        f"an engine's weights take {engine.weights / GIB:.1f} GiB of each GPU of "
        f"{given.gpu_memory_gib:g} GiB, and the rest does not hold one sequence of {longest} "
        f"tokens ({engine.token * longest / GIB:.2f} GiB); raise `tensor_parallel_size` (and "
        f"`num_gpus_per_env_runner`), set `dtype: bfloat16`, or lower {where}"
    ]


# -- What the terminal shows -------------------------------------------------------------------


def show(plans: Sequence[Plan], *, as_json: bool) -> None:
    """Print plans, as tables or as one JSON object by the experiments' names."""
    if as_json:
        typer.echo(json.dumps({plan.name: asdict(plan) for plan in plans}, indent=2))
        return
    for each in plans:
        _show_one(each)


def _show_one(one: Plan) -> None:
    console = Console(highlight=False)
    size = f"{one.parameters / 1e9:.3g} billion parameters"
    console.print(f"[bold]{one.name}[/]: {one.model}, {size}")
    console.print(_table("actors", ("actor", "number", "CPUs each", "GPUs each"), [
        (what, str(number), f"{cpus:g}", f"{gpus:g}") for what, number, cpus, gpus in one.actors
    ]))  # fmt: skip
    if one.learner:
        console.print(_table("one learner", ("what", "GiB"), [
            (what, f"{size / GIB:.2f}") for what, size in one.learner.items()
        ]))  # fmt: skip
    console.print(_table("one engine, on each of its devices", ("what", "GiB"), _engine_rows(one)))
    console.print(_table("one step", ("what", "amount"), _step_rows(one)))
    for note in one.notes:
        console.print(f"[yellow]not counted[/] {note}", soft_wrap=True, markup=True)


def _engine_rows(one: Plan) -> list[tuple[str, str]]:
    rows = [("weights", f"{one.engine.weights / GIB:.2f}")]
    if one.engine.cache is None:
        rows.append(("key-value cache", "say --gpu-memory-gib"))
    else:
        rows.append(("key-value cache", f"{one.engine.cache / GIB:.2f}"))
        mean, longest = one.completions_at_once
        rows.append(("sequences at once, mean / longest", f"{mean} / {longest}"))
    rows.append(("a token's keys and values", f"{one.engine.token / 2**10:.1f} KiB"))
    return rows


def _step_rows(one: Plan) -> list[tuple[str, str]]:
    step, given = one.step, one.assumptions
    rows = [
        ("groups sampled", f"{step.groups_sampled:,.0f} (keep rate {given.keep_rate:g})"),
        (
            "completion tokens sampled",
            f"{step.tokens_sampled:,.0f} ({given.completion_tokens:g} each)",
        ),
        ("tokens trained per epoch", f"{step.tokens_trained:,.0f}"),
        ("optimizer steps", f"{step.updates}"),
        ("learners' operations", f"{step.flops:.3g}"),
        ("object store, groups", f"{step.object_store / GIB:.2f} GiB"),
        ("driver, token batch", f"{step.batch / GIB:.2f} GiB"),
        ("weights to each engine", f"{step.sync / GIB:.2f} GiB"),
    ]
    rows += [(f"time, {phase}", f"{seconds:,.1f} s") for phase, seconds in one.seconds.items()]
    if "step" not in one.seconds:
        rows.append(("time", "say --runner-tokens-per-s, --learner-tflops and --network-gib-per-s"))
    return rows


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table
