"""What `rllib train` prints in the terminal.

That is a heading, one line for each iteration, a line at the bottom that shows how far the
iteration is, and a summary. The bottom line comes from files: a trial leaves its progress in
its folder (`rollout.progress`), and `StatusLine` reads it there. A trial on another machine
leaves it where this process cannot read it, and then nothing is shown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.tune import Callback
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from rllib_dapo.cli.experiment_file import Experiment
from rllib_dapo.metrics import EVALUATION, INITIAL_EVALUATION, LEARNER, ROLLOUT
from rllib_dapo.rollout.progress import FILE_NAME

if TYPE_CHECKING:
    from ray.tune import ResultGrid

MISSING = "–"
HEADER_EVERY = 20
_SECONDS_BETWEEN_LOOKS = 0.25
# A line that is overwritten does not suit a log. There, only slow iterations report progress.
_SECONDS_BETWEEN_LOG_LINES = 30.0


@dataclass(frozen=True)
class Column:
    """One column of the table.

    Args:
        header: the heading, at most `width` characters.
        key: where the value is in Tune's result, with `/` between the levels.
        format: how the number is written, as for `format()`.
        width: characters.
    """

    header: str
    key: str
    format: str = ".3f"
    width: int = 7

    def show(self, result: Mapping[str, Any]) -> str:
        """The value in `result`, or a dash. It never raises: no run may end for a printed line."""
        value = lookup(result, self.key)
        if isinstance(value, bool) or not hasattr(value, "__float__"):
            return MISSING
        number = float(value)
        if math.isnan(number):
            return MISSING
        return format(number, self.format)


# The most important come first: a narrow terminal shows the first ones that fit.
DAPO_COLUMNS = (
    Column("iter", "training_iteration", ".0f", 5),
    Column("acc", f"{ROLLOUT}/accuracy", ".1%"),
    Column("held-out", f"{EVALUATION}/accuracy", ".1%", 8),
    Column("return", f"{ROLLOUT}/episode_return_mean", ".2f"),
    Column("s", "time_this_iter_s", ".1f", 6),
    Column("length", f"{ROLLOUT}/completion_length_mean", ".1f"),
    Column("cut", f"{ROLLOUT}/truncated_share", ".1%", 6),
    Column("entropy", f"{LEARNER}/entropy"),
    Column("clip+", f"{LEARNER}/clip_share_high", ".2%"),
    Column("clip-", f"{LEARNER}/clip_share_low", ".2%"),
    Column("kept", f"{ROLLOUT}/groups_kept", ".0f", 5),
    Column("asked", f"{ROLLOUT}/groups_asked", ".0f", 6),
    Column("reused", f"{ROLLOUT}/groups_from_buffer", ".0f", 6),
    Column("grad", f"{LEARNER}/grad_norm", ".2f", 6),
    Column("gap", f"{LEARNER}/engine_gap_mean", ".0e", 6),
    Column("tok/s", f"{ROLLOUT}/tokens_per_s", ".0f"),
)
OTHER_COLUMNS = (
    Column("iter", "training_iteration", ".0f", 5),
    Column("return", "env_runners/episode_return_mean", ".2f", 9),
    Column("eval", "evaluation/env_runners/episode_return_mean", ".2f", 9),
    Column("length", "env_runners/episode_len_mean", ".1f", 9),
    Column("steps", "num_env_steps_sampled_lifetime", ".0f", 10),
    Column("s", "time_this_iter_s", ".1f"),
)


def lookup(result: Mapping[str, Any], key: str) -> Any:
    """The value at the key `a/b`, nested or flat; None if there is none."""
    if key in result:
        return result[key]
    first, _, rest = key.partition("/")
    inner = result.get(first)
    return lookup(inner, rest) if rest and isinstance(inner, Mapping) else None


def _new_in(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """`result` without the evaluation of an earlier iteration, which every result carries."""
    made = lookup(result, f"{EVALUATION}/iteration")
    if made is None or made == lookup(result, "training_iteration"):
        return result
    return {key: value for key, value in result.items() if key.partition("/")[0] != EVALUATION}


def columns_for(algorithm: str) -> tuple[Column, ...]:
    """The columns for an algorithm."""
    return DAPO_COLUMNS if algorithm == "DAPO" else OTHER_COLUMNS


def fitting(columns: Sequence[Column], width: int | None) -> list[Column]:
    """The columns that fit in `width` characters; all of them where it is None."""
    shown: list[Column] = []
    used = 0
    for column in columns:
        used += column.width + 1
        if width is not None and used > width:
            break
        shown.append(column)
    return shown


class StatusLine:
    """The progress of the running iteration: one line that is overwritten, or a few in a log."""

    def __init__(self) -> None:
        self._status: Status | None = None
        self._looked = 0.0
        self._logged = time.monotonic()

    def show(self, trials: Iterable[Any]) -> None:
        """Read the trials' progress, at most four times a second, and show it."""
        now = time.monotonic()
        if now - self._looked < _SECONDS_BETWEEN_LOOKS:
            return
        self._looked = now
        running = [trial for trial in trials if getattr(trial, "status", None) == "RUNNING"]
        lines = [text for trial in running if (text := _progress_of(trial))]
        if not lines:
            return
        console = Console(highlight=False)
        text = lines[0] + (f" (and {len(lines) - 1} more trials)" if len(lines) > 1 else "")
        if not console.is_terminal:
            if now - self._logged > _SECONDS_BETWEEN_LOG_LINES:
                self._logged = now
                console.print(text, soft_wrap=True)
        elif self._status is None:
            self._status = Status(text, console=console)
            self._status.start()
        else:
            self._status.update(text)

    def clear(self) -> None:
        """Remove the line before something else is printed."""
        self._logged = time.monotonic()
        if self._status is not None:
            self._status.stop()
            self._status = None


def _progress_of(trial: Any) -> str | None:
    try:
        folder = Path(trial.storage.trial_working_directory)
        return (folder / FILE_NAME).read_text(encoding="utf-8").strip()
    # The trial has not begun, runs elsewhere, or is writing the file at this moment.
    except (AttributeError, OSError, ValueError):
        return None


_status = StatusLine()


class IterationLines(Callback):
    """Prints one line per iteration and trial, and a header every 20 lines.

    It holds plain data only, because Tune pickles its callbacks with the experiment.
    """

    def __init__(self, columns: Sequence[Column], varied: Sequence[str] = ()) -> None:
        self.columns = tuple(columns)
        self.varied = tuple(varied)
        self.shown: dict[str, str] = {}  # the values of each trial, as they were printed
        self.lines = 0

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Print the values that this trial has, and again when a scheduler has changed them."""
        values = values_of(trial.config, self.varied)
        if values and self.shown.get(trial.trial_id) != values:
            _status.clear()
            self.shown[trial.trial_id] = values
            _console().print(escape(f"trial {trial.trial_id}: {values}"), soft_wrap=True)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Print the iteration's line."""
        console = _console()
        _status.clear()
        if (before := lookup(result, f"{INITIAL_EVALUATION}/accuracy")) is not None:
            pass_at_k = lookup(result, f"{INITIAL_EVALUATION}/pass_at_k")
            k = lookup(result, f"{INITIAL_EVALUATION}/k")
            console.print(
                f"before training: {before:.1%} of the held-out completions are correct "
                f"(pass@{k:.0f} {pass_at_k:.1%})"
            )
        new = _new_in(result)
        for name in (INITIAL_EVALUATION, EVALUATION):
            if failed := lookup(new, f"{name}/problems_failed"):
                console.print(
                    f"{failed:.0f} of {lookup(new, f'{name}/num_problems'):.0f} held-out "
                    "problems failed and count as wrong; the trial's log says why"
                )
        prefix = f"{trial.trial_id[-5:]:<6}" if len(trials) > 1 else ""
        width = console.width - len(prefix) if console.is_terminal else None
        columns = fitting(self.columns, width)
        if self.lines % HEADER_EVERY == 0:
            header = " ".join(f"{c.header:>{c.width}}" for c in columns)
            console.print(" " * len(prefix) + header, style="bold", soft_wrap=True)
        values = " ".join(f"{c.show(new):>{c.width}}" for c in columns)
        console.print(escape(prefix + values), soft_wrap=True)
        self.lines += 1

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Show the progress of the running trials."""
        _status.show(trials)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Remove the progress line."""
        _status.clear()

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Print that a failed trial is tried again."""
        _console().print(f"trial {trial.trial_id} failed and is tried again", style="yellow")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Print at once that a trial failed; its cause is printed at the end."""
        _status.clear()
        _console().print(f"trial {trial.trial_id} failed", style="red")


def iteration_callback(algorithm: str, varied: Sequence[str] = ()) -> IterationLines:
    """The callback for trials of `algorithm` that differ in the settings `varied`."""
    return IterationLines(columns_for(algorithm), varied)


def values_of(config: Mapping[str, Any], names: Sequence[str]) -> str:
    """The values of some settings, nested ones as `a/b`, in one line."""
    found = {name: lookup(config, name) for name in names}
    return ", ".join(
        f"{name}={format(value, '.6g') if isinstance(value, float) else value}"
        for name, value in found.items()
    )


def announce(
    experiment: Experiment,
    config: Any,
    bundles: Sequence[Mapping[str, float]],
    path: str,
    note: str | None = None,
) -> None:
    """Print what is about to run, with which resources, and where the results go.

    Args:
        experiment: the experiment.
        config: the algorithm's config of the first variant.
        bundles: the resources of one trial.
        path: the folder or URI of the results.
        note: one more line, such as that earlier trials are resumed.
    """
    totals: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            totals[name] = totals.get(name, 0) + amount
    # `language_model` names the model of DAPO; RLlib's `model` holds network settings.
    model = getattr(config, "language_model", None) or getattr(config, "model", None)
    stop = ", ".join(f"{key} ≥ {value:g}" for key, value in experiment.stop.items())
    if experiment.time_budget_s:
        stop += f"{' or ' if stop else ''}{experiment.time_budget_s:g} s"
    _print_pairs(
        {
            "experiment": f"{experiment.name} ({experiment.run_name})",
            "model": model if isinstance(model, str) else None,
            "environment": getattr(config, "env", None),
            "resources": ", ".join(f"{v:g} {k}" for k, v in sorted(totals.items()) if v)
            + " per trial",
            "stops at": stop or "ctrl-C (the file has no `stop`)",
            "results": path,
            "TensorBoard": f"tensorboard --logdir {path}",
            "note": note,
        }
    )


def _print_pairs(pairs: Mapping[str, Any]) -> None:
    console = _console()
    for name, value in pairs.items():
        if value is not None:
            console.print(f"[bold]{name:<12}[/] {escape(str(value))}", soft_wrap=True)


def summarise(grid: ResultGrid, interrupted: bool = False, varied: Sequence[str] = ()) -> None:
    """Print a line for each trial: its values, last metrics, time and last checkpoint."""
    console = _console()
    for i in range(len(grid)):
        result = grid[i]
        metrics = result.metrics or {}
        final = [
            f"{column.header} {column.show(metrics)}"
            for column in (*DAPO_COLUMNS[:3], OTHER_COLUMNS[1])
            if column.show(metrics) != MISSING
        ]
        seconds = lookup(metrics, "time_total_s")
        time = f"{seconds:.0f} s" if isinstance(seconds, int | float) else MISSING
        checkpoint = result.checkpoint.path if result.checkpoint else "none"
        finished = "[yellow]stopped[/]" if interrupted else "[green]done[/]"
        state = "[red]failed[/]" if result.error else finished
        values = values_of(metrics.get("config", {}), varied)
        trial = f" {lookup(metrics, 'trial_id')}:" if len(grid) > 1 else ""
        trial += f" {values};" if values else ""
        line = f"{trial} {', '.join(final) or 'no result'}; {time}; checkpoint: {checkpoint}"
        console.print(f"{state}{escape(line)}", soft_wrap=True)


def _console() -> Console:
    # It is made anew each time, because it must follow a redirected stdout and cannot be pickled.
    return Console(highlight=False)
