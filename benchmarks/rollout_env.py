"""Sums whose groups carry a signal at a rate that is set."""

from __future__ import annotations

import zlib
from typing import Any

from rllib_dapo.envs.arithmetic import ArithmeticEnv


class SignalRateEnv(ArithmeticEnv):
    """Poses sums; hashes say which answers count as right.

    A hash of the problem says whether its group is to carry a signal. If so, a hash of each
    answer's text says whether it is right, so a group of different answers is mixed; if not,
    all answers are right, or all are wrong. The same problem and answers always get the same
    scores, on whichever runner.

    Args:
        rate: share of problems whose groups are to carry a signal; may be changed later.
        **kwargs: those of `ArithmeticEnv`.
    """

    def __init__(self, *, rate: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = rate

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Score an answer."""
        if self._problem is None:
            raise RuntimeError("SignalRateEnv.step before reset: call reset() first")
        problem = zlib.crc32(b"signal" + self._problem.text.encode())
        decides = zlib.crc32(action.encode()) if problem < self.rate * 2**32 else problem
        right = bool(decides & 1)
        return "", 1.0 if right else -1.0, True, False, {"correct": right}
