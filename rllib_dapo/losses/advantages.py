"""Group-relative advantages (Eq. 9 of DAPO, arXiv 2503.14476).

Eq. 9 says only "std". We use the *sample* standard deviation (division by G − 1), as the
runs of the paper did: its recipe calls `torch.std`. Compared with the population form this
scales every advantage by √((G − 1)/G): 0.97 at the paper's G = 16, 0.71 at G = 2.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from rllib_dapo.errors import SettingError, TrainingError
from rllib_dapo.settings.choices import Baseline
from rllib_dapo.types import FloatArray


def group_advantages(
    rewards: npt.ArrayLike,
    *,
    baseline: Baseline = "group_mean",
    normalize_std: bool = True,
    epsilon: float = 1e-6,
) -> FloatArray:
    """Compute how much better each completion of one group is than its group.

    ```
    Â_i = (R_i − b_i) / (std(R) + ε)                                          (Eq. 9)

    b_i = mean_j(R_j)        group_mean, as in the paper
    b_i = mean_{j≠i}(R_j)    leave_one_out; R_i − b_i is then G/(G−1) times the above
    ```

    A group of equal rewards has exactly 0 everywhere. Equality is decided by comparing the
    largest with the smallest reward, because in floating point the standard deviation of
    seven times 0.95 is not 0. Sums are rounded once (`math.fsum`), so the order of the
    completions does not change a single bit.

    Args:
        rewards: float64[G], the (shaped) rewards R of the completions of one problem.
        baseline: the choice of b_i.
        normalize_std: True divides by the deviation, which gives a larger weight to problems
            that are solved nearly always or nearly never. False does not (Dr. GRPO, arXiv
            2503.20783).
        epsilon: ε, the recipe's 1e-6.

    Returns:
        float32[G], one advantage per completion, the same for each of its tokens.

    Raises:
        SettingError: `baseline` is unknown, or G < 2, so that a completion cannot be compared.
        TrainingError: a reward is NaN or infinite, which would spoil its whole group.
    """
    values = np.asarray(rewards, dtype=np.float64)
    _check(values)
    if baseline not in ("group_mean", "leave_one_out"):
        raise SettingError(
            f"advantage_baseline={baseline!r} is unknown: use 'group_mean' or 'leave_one_out'",
            "advantage_baseline",
        )
    size = len(values)
    if values.max() == values.min():
        return np.zeros(size, dtype=np.float32)

    deviations = values - math.fsum(values) / size
    centered = deviations * (size / (size - 1)) if baseline == "leave_one_out" else deviations
    if normalize_std:
        std = math.sqrt(math.fsum(deviations**2) / (size - 1))
        centered = centered / (std + epsilon)
    return centered.astype(np.float32)


def _check(values: npt.NDArray[np.float64]) -> None:
    """Refuse rewards without a group-relative advantage."""
    if values.ndim != 1 or len(values) < 2:
        raise SettingError(
            f"group_size: rewards of shape {values.shape} are not one group of at least 2 "
            "completions (a completion is compared with the others of its group); set group_size "
            "to 2 or more",
            "group_size",
        )
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise TrainingError(
            f"rewards[{bad[0]}]={values[bad[0]]}: a reward that is not finite would spoil its "
            "whole group; drop the group (rollout.group_filter.classify calls it 'failed') or "
            "correct the reward function"
        )
