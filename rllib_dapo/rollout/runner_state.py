"""What the pool knows of one runner."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from rllib_dapo.types import ProblemRef

# How much work a runner has in flight, in multiples of what its engine computes at once. Half of
# it waits in the engine's queue while the next message is on its way.
WORK_PER_CAPACITY = 1.5


@dataclass
class RunnerState:
    """What the pool knows of one runner.

    Attributes:
        in_flight: the problems it is to answer.
        unsent: those of them that it has not been told of yet.
        calling: True while a call to it is in flight.
        steps: engine steps it has reported; -1 before its first reply.
        last_progress: when it last made progress or was idle, by `time.monotonic`.
        capacity: completions that its engine computes at once; 1 before its first reply.
        busy_s: seconds that its engine has computed, as it reports them.
    """

    in_flight: dict[ProblemRef, None] = field(default_factory=dict)
    unsent: list[ProblemRef] = field(default_factory=list)
    calling: bool = False
    steps: int = -1
    last_progress: float = field(default_factory=time.monotonic)
    capacity: int = 1
    busy_s: float = 0.0

    def assign(self, ref: ProblemRef) -> None:
        """Have it answer a problem."""
        if not self.in_flight:
            self.last_progress = time.monotonic()
        self.in_flight[ref] = None
        self.unsent.append(ref)

    def target(self, group_size: int) -> int:
        """How many problems it should have in flight."""
        return max(1, math.ceil(WORK_PER_CAPACITY * self.capacity / group_size))
