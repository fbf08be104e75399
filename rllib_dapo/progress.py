"""Progress of the iteration that is being sampled."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rllib_dapo.sampling.dynamic import Progress

_REASONS = {
    "all_correct": "all right",
    "all_wrong": "all wrong",
    "equal_scores": "equal",
    "failed": "failed",
}


def describe(progress: Progress) -> str:
    """What was dropped and why, for instance `round 2/10, dropped 9 (7 all right, 2 all wrong)`."""
    dropped = {reason: n for reason, n in progress.dropped.items() if n}
    text = f"round {progress.rounds}/{progress.max_rounds}"
    if dropped:
        parts = ", ".join(f"{n} {_REASONS[reason]}" for reason, n in dropped.items())
        text += f", dropped {sum(dropped.values())} ({parts})"
    return text


class RolloutBar:
    """A progress bar of groups kept, on the terminal of whoever started the run.

    Ray's own tqdm carries it from a trial's process to that terminal.

    Args:
        wanted: groups of a full batch.
        iteration: number of the iteration.
        shown: False shows nothing.
    """

    def __init__(self, wanted: int, iteration: int, *, shown: bool) -> None:
        self._bar: Any = None
        if shown:
            from ray.experimental import tqdm_ray

            self._bar = tqdm_ray.tqdm(
                total=wanted, desc=f"iteration {iteration}: groups kept", unit="group"
            )
        self._kept = 0

    def __enter__(self) -> RolloutBar:
        return self

    def update(self, progress: Progress) -> None:
        """Show a new state."""
        if self._bar is None:
            return
        kept = min(progress.kept, progress.wanted)
        self._bar.set_description(describe(progress))
        self._bar.update(kept - self._kept)
        self._kept = kept

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
