"""Group-relative advantages (Eq. 9 of DAPO, arXiv 2503.14476).

Departure from a literal reading: Eq. 9 says only "std". We take the *sample* standard
deviation (division by G − 1), because the runs of the paper did: its recipe calls
`torch.std`. Against the population form it scales every advantage by √((G − 1)/G):
0.97 at the paper's G = 16, 0.71 at G = 2.
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
    """How much better each answer of one group is than its group.

    ```
    Â_i = (R_i − b_i) / (std(R) + ε)                                          (Eq. 9)

    b_i = mean_j(R_j)        group_mean, as in the paper
    b_i = mean_{j≠i}(R_j)    leave_one_out; R_i − b_i is then G/(G−1) times the above
    ```

    A group of equal rewards has exactly 0 everywhere. That is decided by comparing the
    largest with the smallest reward: in floating point the standard deviation of seven
    times 0.95 is not 0. Sums are rounded once (`math.fsum`), so the order of the answers
    does not change a single bit.

    Args:
        rewards: float64[G], the (shaped) rewards R of the answers to one problem.
        baseline: which b_i.
        normalize_std: False leaves out the division (Dr. GRPO, arXiv 2503.20783), which
            gives nearly-always and nearly-never solved problems a larger weight.
        epsilon: ε, the recipe's 1e-6.

    Returns:
        float32[G], one advantage per answer, the same for each of its tokens.

    Raises:
        SettingError: G < 2, where an answer has nothing to be compared with.
        TrainingError: a reward is NaN or infinite; it would poison its whole group.
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
    """Refuse what has no group-relative advantage."""
    if values.ndim != 1 or len(values) < 2:
        raise SettingError(
            f"group_size: rewards of shape {values.shape} are not one group of at least 2 answers "
            "(an answer is compared with the others of its group); set group_size to 2 or more",
            "group_size",
        )
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise TrainingError(
            f"rewards[{bad[0]}]={values[bad[0]]}: a reward that is not finite would poison its "
            "whole group; drop the group (sampling.dynamic.classify calls it 'failed') or mend "
            "the reward function"
        )
