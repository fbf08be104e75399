"""The learning rate over the run, as a share of its peak."""

from __future__ import annotations

import math

from rllib_dapo.settings.choices import LearningRateSchedule


def learning_rate_factor(
    step: int,
    *,
    warmup: int,
    schedule: LearningRateSchedule = "constant",
    decay_steps: int | None = None,
    end_factor: float = 0.0,
) -> float:
    """What `lr` is multiplied by in a rollout step: linear warm-up, then the schedule.

    ```
    (s + 1) / W                                             s < W
    1                                                       constant
    1 − (1 − f)·(1 − cos(π·p)) / 2,  p = (s − W) / (D − W)  cosine, W ≤ s ≤ D
    f                                                       cosine, s > D
    ```

    Warm-up as in the paper (arXiv 2503.14476, Section 4.1: 20 rollout steps), which goes on
    constant; the cosine is that of arXiv 1608.03983, Eq. 5, without restarts.

    Args:
        step: s, rollout steps (calls of `Learner.update`) done before this one.
        warmup: W, rollout steps; 0 for none. Step W − 1 is the first at the full rate.
        schedule: what follows.
        decay_steps: D > W, the step from which on the factor is f; for `cosine` only.
        end_factor: f, from 0 to 1; for `cosine` only.

    Returns:
        From 0 to 1; 0 only where f is 0.
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant" or decay_steps is None:
        return 1.0
    progress = min(1.0, (step - warmup) / (decay_steps - warmup))
    return 1.0 - (1.0 - end_factor) * (1.0 - math.cos(math.pi * progress)) / 2.0
