"""`rllib check-data`: its arguments and what it prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from rllib_dapo.cli import search_space
from rllib_dapo.cli.experiment_file import load_experiments
from rllib_dapo.errors import ExperimentFileError, SettingError

_MOST_LISTED = 10


def check_data(
    dataset: Annotated[str, typer.Argument(metavar="FILE", help="A file, a folder or a hub id.")],
    config: Annotated[
        str | None, typer.Option(help="Experiment file whose model, prompt and grader are used.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model whose tokenizer is used.")] = None,
    problem_key: Annotated[str | None, typer.Option(help="Column that holds the problem.")] = None,
    answer_key: Annotated[str | None, typer.Option(help="Column that holds the answer.")] = None,
    problem_template: Annotated[
        str | None, typer.Option(help='Problem from several columns, as "{Body} {Question}".')
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of the data set, such as train.")] = None,
    subset: Annotated[str | None, typer.Option(help="Subset of a data set on the hub.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Read only this many rows.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Show what a run would pose from a data set, and what it would drop and why."""
    # transformers takes seconds to import, and `rllib --help` should not.
    from rllib_dapo.data import inspection

    reading = {
        "problem_key": problem_key,
        "answer_key": answer_key,
        "problem_template": problem_template,
        "split": split,
        "subset": subset,
        "limit": limit,
    }
    given = {key: value for key, value in reading.items() if value is not None}
    found = inspection.check_data(dataset, read_config(config, model), given)
    if as_json:
        typer.echo(json.dumps(found.as_json, ensure_ascii=False, indent=2))
    else:
        _print(found)
    if not found.good:
        raise typer.Exit(1)


def read_config(path: str | None, model: str | None = None) -> Any:
    """The settings (`DataConfig`) of the first experiment of a file; without a file, the defaults.

    Args:
        path: an experiment file.
        model: the model whose tokenizer is used, instead of that of the file.

    Raises:
        ExperimentFileError: the file is wrong.
    """
    from rllib_dapo.data.inspection import DataConfig
    from rllib_dapo.settings.checks import check_value
    from rllib_dapo.settings.general import DAPOSettings
    from rllib_dapo.settings.names import setting_names, written_name

    settings = DAPOSettings()
    config: dict[str, Any] = {}
    if path is not None:
        experiment = load_experiments(path)[0]
        config = next(iter(search_space.variants(dict(experiment.config))))
        for name in setting_names():
            key = name if name in config else written_name(name)
            if key not in config:
                continue
            try:
                check_value(name, config[key])
            except SettingError as error:
                raise ExperimentFileError(experiment.located(str(error), key)) from error
            setattr(settings, name, config[key])
    if model is not None:
        settings.language_model = model
    of_evaluation = config.get("evaluation_config") or {}
    evaluation = of_evaluation.get("env_config")
    return DataConfig(settings, config.get("env_config") or {}, evaluation)


def _print(found: Any) -> None:  # a DataCheck, whose module is slow to import
    console = Console(highlight=False)

    def line(name: str, text: object) -> None:
        console.print(f"[bold]{name:<12}[/] {escape(str(text))}", soft_wrap=True)

    line("data set", found.name)
    for part, taken in found.columns.items():
        rule = f" ({taken['rule']})" if taken["rule"] else ""
        unused = ", ".join(taken["unused"]) or "none"
        line("columns", f"{part}: problem from {taken['problem']}, answer from"
             f" {taken['answer']}{rule}; not used: {unused}")  # fmt: skip
    line("rows", f"{found.rows_read:,} read, {found.rows_posed:,} would be posed")
    line("duplicates", f"{_rows(found.duplicates)} with a problem that occurred before,"
         f" {found.conflicts:,} of them with another answer")  # fmt: skip
    line("answers", ", ".join(f"{count:,} {kind}" for kind, count in found.golds.items()))
    if found.word_for_word:
        line("", found.word_for_word)
    size = found.characters
    line("characters", f"{size.shortest:,} to {size.longest:,}, median {size.median:,}")
    if found.tokens is not None:
        size = found.tokens
        line("tokens", f"{size.shortest:,} to {size.longest:,}, median {size.median:,} (tokenizer:"
             f" {found.model}; max_prompt_length={found.max_prompt_length:,})")  # fmt: skip
    for number, prompt in enumerate(found.prompts, start=1):
        console.print(Panel(escape(prompt), title=f"prompt {number}", title_align="left"))
    _print_findings(found, line)


def _print_findings(found: Any, line: Callable[[str, object], None]) -> None:
    """What is dropped, and what would spoil the run."""
    for reason in found.bad:
        line("dropped", f"{_rows(reason['count'])}, for instance {reason['example']}")
    if found.too_long:
        line("dropped", f"{_rows(found.too_long)} with a prompt longer than"
             f" max_prompt_length={found.max_prompt_length:,} tokens")  # fmt: skip
    for refused in found.refused_golds[:_MOST_LISTED]:
        line("unfit", f"the {found.grader} grader does not accept the ground truth"
             f" {refused['gold']!r:.80} ({refused['source']}) as an answer; it reads"
             f" {refused['found']!r:.80}")  # fmt: skip
    if len(found.refused_golds) > _MOST_LISTED:
        line("unfit", f"… and {len(found.refused_golds) - _MOST_LISTED:,} more ground truths")
    if found.overlap:
        line("overlap", found.overlap)
    if found.good:
        line("result", "every row would be posed, and every ground truth accepts itself")


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
