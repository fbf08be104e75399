"""How many problems to request, given the share of groups that carry a signal."""

from __future__ import annotations

import math

# The share drifts as the model learns, so counts weigh half as much two batches later.
_DECAY = 0.5**0.5
# A rate of 0 would ask for infinitely many problems.
_LOWEST_RATE = 0.05


class KeepRate:
    """A running estimate of the share of groups that are kept.

    The estimate is the ratio of two decaying counts, of kept and of sampled groups; older
    batches weigh less. The counts begin as if a quarter of a batch had been sampled and all of
    it kept: the first few groups of a run cannot swing the estimate, and later ones outweigh it.

    Args:
        wanted: N, groups of a full batch.
    """

    def __init__(self, wanted: int) -> None:
        self._kept = self._sampled = max(1.0, wanted / 4)

    def rate(self, kept: int = 0, sampled: int = 0) -> float:
        """The share, in [1/20, 1].

        Args:
            kept: groups kept so far in the present batch, which `learn` has not been told yet.
            sampled: groups sampled so far in the present batch.
        """
        return max(_LOWEST_RATE, (self._kept + kept) / (self._sampled + sampled))

    def learn(self, kept: int, sampled: int) -> None:
        """Take in the counts of a batch; a batch that sampled nothing changes nothing."""
        if sampled:
            self._kept = _DECAY * self._kept + kept
            self._sampled = _DECAY * self._sampled + sampled

    def get_state(self) -> dict[str, float]:
        """The weighted counts; plain values."""
        return {"kept": self._kept, "sampled": self._sampled}

    def set_state(self, state: dict[str, float]) -> None:
        """Continue from a saved state."""
        self._kept, self._sampled = float(state["kept"]), float(state["sampled"])


def problems_needed(missing: int, rate: float, margin: float = 0.0) -> int:
    """The smallest n for which at least `missing` of n groups should be kept.

    On average n·rate of n groups are kept, with a standard deviation of √(n·rate·(1 - rate)).
    The returned n is the smallest for which the mean minus `margin` deviations is at least
    `missing`: a quadratic inequality in √n.

    Args:
        missing: groups to be kept.
        rate: share of groups that are kept, in (0, 1].
        margin: standard deviations of safety, 0 or more.
    """
    if missing <= 0:
        return 0
    deviation = margin * math.sqrt(rate * (1.0 - rate))

    def enough(n: int) -> bool:
        return n * rate - deviation * math.sqrt(n) >= missing

    root = (deviation + math.sqrt(deviation**2 + 4.0 * rate * missing)) / (2.0 * rate)
    n = math.ceil(root**2)
    while not enough(n):  # rounding errors cost a step at most
        n += 1
    while enough(n - 1):
        n -= 1
    return n
