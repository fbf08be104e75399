"""What the pool knows of one runner."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from rllib_dapo.types import ProblemRef

# What a runner has in hand, in multiples of what its engine computes at once: half of it waits
# in the engine's queue while the next message is on its way.
IN_HAND = 1.5


@dataclass
class RunnerState:
    """What the pool knows of one runner.

    Attributes:
        open: problems it is answering.
        new: of them, those it has not been told yet.
        calling: whether a call of it is in flight.
        steps: engine steps it has reported.
        heard: when it last showed progress, or was idle; `time.monotonic`.
        capacity: answers its engine computes at once; 1 until it has said so.
        busy_s: seconds its engine has computed, as it says.
    """

    open: dict[ProblemRef, None] = field(default_factory=dict)
    new: list[ProblemRef] = field(default_factory=list)
    calling: bool = False
    steps: int = -1
    heard: float = field(default_factory=time.monotonic)
    capacity: int = 1
    busy_s: float = 0.0

    def give(self, ref: ProblemRef) -> None:
        """Have it answer a problem."""
        if not self.open:
            self.heard = time.monotonic()
        self.open[ref] = None
        self.new.append(ref)

    def room(self, group_size: int) -> int:
        """How many problems it should have in hand."""
        return max(1, math.ceil(IN_HAND * self.capacity / group_size))
