"""How many problems to ask for, from the share of groups that carry a signal."""

from __future__ import annotations

import math

# Counts of a batch weigh half as much two batches later: the share drifts as the model learns.
_DECAY = 0.5**0.5
# However few groups were kept: of rate 0 no number of problems is enough.
_LOWEST_RATE = 0.05


class KeepRate:
    """A running estimate of the share of groups that are kept.

    Counts of kept and of sampled groups, each batch's weighing less than the next one's.
    They begin as if a quarter of a batch had been kept without exception: enough that the
    first few groups of a run cannot swing the estimate, soon outweighed by what is sampled.

    Args:
        wanted: N, groups of a full batch.
    """

    def __init__(self, wanted: int) -> None:
        self._kept = self._sampled = max(1.0, wanted / 4)

    def rate(self, kept: int = 0, sampled: int = 0) -> float:
        """The share, in [1/20, 1].

        Args:
            kept: groups kept so far in the batch in flight, which is not learned from yet.
            sampled: groups sampled so far in it.
        """
        return max(_LOWEST_RATE, (self._kept + kept) / (self._sampled + sampled))

    def learn(self, kept: int, sampled: int) -> None:
        """Take in the counts of a batch; one that sampled nothing says nothing."""
        if sampled:
            self._kept = _DECAY * self._kept + kept
            self._sampled = _DECAY * self._sampled + sampled

    def get_state(self) -> dict[str, float]:
        """The weighted counts; plain values."""
        return {"kept": self._kept, "sampled": self._sampled}

    def set_state(self, state: dict[str, float]) -> None:
        """Go on where the state was taken."""
        self._kept, self._sampled = float(state["kept"]), float(state["sampled"])


def problems_needed(missing: int, rate: float, margin: float = 0.0) -> int:
    """The smallest n of which `missing` groups or more should be kept.

    Of n groups n·rate are kept on average, with a standard deviation of
    √(n·rate·(1 - rate)); n is such that the mean less `margin` deviations is `missing`. That
    is a quadratic inequality in √n.

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
    while not enough(n):  # rounding: a step, if any
        n += 1
    while enough(n - 1):
        n -= 1
    return n
