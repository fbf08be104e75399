"""The line below the table: how far the running trials' rollouts are.

Trials leave their progress in their folders (`progress`); this reads it there. Trials on other
machines than the one with the terminal leave it where it cannot be read, and show nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from rllib_dapo.rollout.progress import FILE_NAME

_SECONDS_BETWEEN_LOOKS = 0.25
# Without a terminal a line cannot be overwritten: only slow iterations are reported on.
_SECONDS_BETWEEN_LOG_LINES = 30.0


class StatusLine:
    """One line that is overwritten in a terminal, and now and then a line in a log."""

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
        """Take the line away, before something else is printed."""
        self._logged = time.monotonic()
        if self._status is not None:
            self._status.stop()
            self._status = None


def _progress_of(trial: Any) -> str | None:
    try:
        folder = Path(trial.storage.trial_working_directory)
        return (folder / FILE_NAME).read_text(encoding="utf-8").strip()
    except (AttributeError, OSError, ValueError):  # not begun, elsewhere, or half-written
        return None
