"""The learning rate over the run, as a share of its peak."""

from __future__ import annotations

import math
from typing import get_args

from rllib_dapo.errors import SettingError
from rllib_dapo.settings.choices import LearningRateSchedule


def learning_rate_factor(
    step: int,
    *,
    warmup: int,
    schedule: LearningRateSchedule = "constant",
    decay_steps: int | None = None,
    end_factor: float = 0.0,
) -> float:
    """Return the factor of `lr` in a rollout step: linear warm-up, then the schedule.

    ```
    (s + 1) / W                                             s < W
    1                                                       constant
    1 − (1 − f)·(1 − cos(π·p)) / 2,  p = (s − W) / (D − W)  cosine, W ≤ s ≤ D
    f                                                       cosine, s > D
    ```

    The paper (arXiv 2503.14476, Section 4.1) warms up for 20 rollout steps and stays constant
    then. The cosine is that of arXiv 1608.03983, Eq. 5, without restarts.

    Args:
        step: s, the number of rollout steps (calls of `Learner.update`) before this one.
        warmup: W, rollout steps; 0 for no warm-up. Step W − 1 is the first at the full rate.
        schedule: the schedule after the warm-up.
        decay_steps: D > W, the first step at which the factor is f; for `cosine` only.
        end_factor: f, from 0 to 1; for `cosine` only.

    Returns:
        A number from 0 to 1, which is 0 only where f is 0.

    Raises:
        SettingError: unknown `lr_schedule`, or a cosine without a possible
            `lr_decay_iterations` or `lr_end_factor`.
    """
    _check(schedule, warmup, decay_steps, end_factor)
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant" or decay_steps is None:
        return 1.0
    progress = min(1.0, (step - warmup) / (decay_steps - warmup))
    return 1.0 - (1.0 - end_factor) * (1.0 - math.cos(math.pi * progress)) / 2.0


def _check(schedule: str, warmup: int, decay_steps: int | None, end_factor: float) -> None:
    """Refuse an impossible schedule already in the first step, not after the warm-up."""
    if schedule not in get_args(LearningRateSchedule):
        raise SettingError(
            f"lr_schedule={schedule!r} is unknown: use one of "
            f"{', '.join(get_args(LearningRateSchedule))}",
            "lr_schedule",
        )
    if schedule == "constant":
        return
    if decay_steps is None or decay_steps <= warmup:
        raise SettingError(
            f"lr_decay_iterations={decay_steps}: lr_schedule='cosine' needs an iteration to end "
            f"at, after warmup_iterations={warmup}",
            "lr_decay_iterations",
        )
    if not 0.0 <= end_factor <= 1.0:
        raise SettingError(
            f"lr_end_factor={end_factor}: must be from 0 to 1, a share of `lr`", "lr_end_factor"
        )
