"""How long the answers of a reasoning model are, as a distribution.

Lengths of reasoning answers are skewed: most are short, a few are many times as long, and
some never end. A log-normal body with a share that runs into the limit says this with three
numbers. Rollouts wait for the longest answers, so the tail is what schedulers are tried on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rllib_dapo.errors import refuse


@dataclass(frozen=True, slots=True)
class AnswerLengths:
    """A log-normal distribution of lengths, and a share of answers that never end.

    Attributes:
        median: of the answers that end by themselves, tokens, closing EOS included.
        sigma: standard deviation of the length's logarithm; 0 makes all of them alike.
        endless: share of the answers that go on until the limit cuts them, from 0 to 1. The
            body's own tail beyond the limit is cut too and comes on top.

    Raises:
        SettingError: a number is out of its range.

    Example: `AnswerLengths(median=2000, sigma=0.8, endless=0.03)` with a limit of 8192 tokens:
    7% are cut, and the mean is 2,800 tokens.
    """

    median: float
    sigma: float = 0.0
    endless: float = 0.0

    def __post_init__(self) -> None:
        if not self.median >= 1:
            refuse("median", self.median, "an answer has at least 1 token, its EOS")
        if not self.sigma >= 0:
            refuse("sigma", self.sigma, "use 0 or more")
        if not 0 <= self.endless <= 1:
            refuse("endless", self.endless, "use a share from 0 to 1")

    def draw(self, rng: np.random.Generator) -> float:
        """Length of one answer, a whole number of tokens from 1; infinite if it never ends."""
        if rng.random() < self.endless:
            return math.inf
        return float(max(1, round(self.median * math.exp(self.sigma * rng.standard_normal()))))

    def share_cut(self, limit: int) -> float:
        """Share of the answers that are cut at `limit` tokens, when rounding is left out."""
        if self.sigma == 0:
            return self.endless if self.median <= limit else 1.0
        longer = 0.5 * math.erfc(math.log(limit / self.median) / (self.sigma * math.sqrt(2)))
        return self.endless + (1 - self.endless) * longer
