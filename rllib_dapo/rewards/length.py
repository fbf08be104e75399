"""Compute the soft overlong punishment (Eq. 13 of DAPO, arXiv 2503.14476)."""

from __future__ import annotations

from typing import overload

import numpy as np
import numpy.typing as npt

from rllib_dapo.settings.checks import check_soft_overlong
from rllib_dapo.types import IntArray


@overload
def soft_overlong_punishment(length: int, *, max_length: int, cache: int) -> float: ...
@overload
def soft_overlong_punishment(
    length: IntArray, *, max_length: int, cache: int
) -> npt.NDArray[np.float64]: ...
def soft_overlong_punishment(
    length: int | IntArray, *, max_length: int, cache: int
) -> float | npt.NDArray[np.float64]:
    """Compute the punishment to add to the reward of a completion of `length` tokens.

    ```
    R_length(y) =   0                               |y| ≤ L_max − L_cache
                    ((L_max − L_cache) − |y|)/L_cache   up to |y| ≤ L_max
                    −1                              L_max < |y|              (Eq. 13)
    ```

    The middle line is ≥ 0 before its interval and ≤ −1 behind it, so all three lines together
    are the middle one clipped to [−1, 0].

    Args:
        length: |y|, the number of tokens in the completion; one number or int64[B].
        max_length: L_max, the number of tokens at which the punishment reaches −1. In the paper
            this is the generation limit of 20,480 tokens: the expected maximum of 16,384 tokens
            plus the cache.
        cache: L_cache, the number of tokens over which the punishment grows (paper: 4,096).

    Returns:
        The punishment in [−1, 0], as a number or as float64[B].

    Raises:
        SettingError: `cache` is not between 1 and `max_length`.
    """
    check_soft_overlong(max_length=max_length, cache=cache)
    punishment = np.clip((max_length - cache - np.asarray(length)) / cache, -1.0, 0.0)
    return float(punishment) if punishment.ndim == 0 else punishment
