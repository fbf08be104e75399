"""Shows the progress of the iteration that is being sampled.

A process with a terminal shows a bar. A trial of Tune has no terminal: it leaves a line of text
in its folder, and the command that started the run shows it (`cli.console`).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rllib_dapo.rollout.group_filter import BatchProgress
from rllib_dapo.settings.choices import ProgressMode

FILE_NAME = "progress.txt"
_SECONDS_BETWEEN_WRITES = 0.5
_REASONS = {
    "all_wrong": "all wrong",
    "all_correct": "all correct",
    "equal_scores": "equal scores",
    "truncated": "all cut",
    "ungraded": "not graded in time",
    "failed": "failed",
}


def describe(progress: BatchProgress) -> str:
    """Say how much is in flight, and how much was dropped and why.

    Example: `12 in flight, dropped 9 (2 all wrong, 7 all correct)`.
    """
    dropped = {reason: n for reason, n in progress.dropped.items() if n}
    text = f"{progress.in_flight} in flight"
    if dropped:
        parts = ", ".join(f"{n} {_REASONS[reason]}" for reason, n in dropped.items())
        text += f", dropped {sum(dropped.values())} ({parts})"
    return text


class RolloutProgress:
    """Shows how a batch fills.

    Args:
        wanted: groups of a full batch.
        iteration: the number of the iteration, from 1.
        mode: the setting `progress`.
        folder: the folder that gets the line when there is no terminal; None writes no line.
    """

    def __init__(self, wanted: int, iteration: int, mode: ProgressMode, folder: str | None) -> None:
        self._iteration = iteration
        self._bar: Any = None
        self._file: Path | None = None
        self._written = 0.0
        if mode == "on" or (mode == "auto" and sys.stderr.isatty()):
            from tqdm import tqdm

            self._bar = tqdm(total=wanted, desc=f"iteration {iteration}", unit="group", leave=False)
        elif mode == "auto" and folder is not None:
            self._file = Path(folder) / FILE_NAME

    def __enter__(self) -> RolloutProgress:
        return self

    def update(self, progress: BatchProgress) -> None:
        """Show a new state."""
        kept = min(progress.kept, progress.wanted)
        if self._bar is not None:
            self._bar.set_postfix_str(describe(progress), refresh=False)
            self._bar.update(kept - self._bar.n)
        now = time.monotonic()
        if self._file is not None and now - self._written > _SECONDS_BETWEEN_WRITES:
            self._written = now
            self._write(
                f"iteration {self._iteration}: {kept} of {progress.wanted} groups kept, "
                f"{describe(progress)}"
            )

    def _write(self, line: str) -> None:
        if self._file is not None and self._file.parent.is_dir():
            self._file.write_text(line + "\n", encoding="utf-8")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        self._write(f"iteration {self._iteration}: updating the model")
