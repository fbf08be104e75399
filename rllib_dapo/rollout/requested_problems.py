"""Which requested problems are resolved, and in which order a batch may look at them.

Groups arrive in an order that depends on timing. If a batch took them as they arrive, no run
could be repeated, and problems with short completions would be preferred. With the order
`problem`, a resolved problem is therefore released only when all problems requested before it
are resolved too: the released ones are the *resolved prefix* of the requested problems. With the
order `completion`, a problem is released at once: nothing waits for a long completion, and
nothing can be repeated exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from rllib_dapo.errors import SamplingError
from rllib_dapo.types import ProblemRef

FillOrder = Literal["problem", "completion"]
"""Which kept groups fill a batch: the first by position, or the first to arrive."""


class RequestedProblems:
    """The problems requested for one batch.

    Args:
        order: when a resolved problem is released; see the module.

    Attributes:
        requested_anew: problems requested for this batch, without those of earlier batches.
    """

    def __init__(self, order: FillOrder) -> None:
        self.requested_anew = 0
        self._order = order
        self._positions: list[int] = []  # of all requested problems, in problem order
        self._in_flight: dict[int, ProblemRef] = {}
        self._resolved: set[int] = set()
        self._prefix = 0  # how many of `_positions` have been released; unused by `completion`

    def __len__(self) -> int:
        """Problems requested, those of earlier batches included."""
        return len(self._positions)

    @property
    def in_flight(self) -> tuple[ProblemRef, ...]:
        """Problems requested and not resolved, in problem order."""
        return tuple(self._in_flight[position] for position in sorted(self._in_flight))

    def add(self, refs: Iterable[ProblemRef], *, earlier: bool = False) -> None:
        """Note which problems have been requested; one that is known already is skipped.

        Args:
            refs: the problems, at later positions than those released so far.
            earlier: True for problems of an earlier batch that are still in flight; note these
                before the first new one.

        Raises:
            SamplingError: a problem comes before one that has been released.
        """
        for ref in refs:
            if ref.position in self._resolved or ref.position in self._in_flight:
                continue
            if self._prefix and ref.position < self._positions[self._prefix - 1]:
                raise SamplingError(
                    f"problem {ref.position} was noted too late: the batch is already past it; "
                    "note problems in the order of their positions, those in flight first"
                )
            self._in_flight[ref.position] = ref
            self._positions.append(ref.position)
            self.requested_anew += not earlier
        self._positions.sort()

    def set_aside(self, positions: Iterable[int]) -> None:
        """Count problems as resolved that need not be requested: their groups are there."""
        self._resolved.update(positions)

    def resolve(self, position: int) -> list[int] | None:
        """Mark a problem as resolved.

        Returns:
            The positions that are released now, in order, or None if the problem is not in flight.
        """
        if self._in_flight.pop(position, None) is None:
            return None
        self._resolved.add(position)
        if self._order == "completion":
            return [position]
        start = self._prefix
        while (
            self._prefix < len(self._positions) and self._positions[self._prefix] in self._resolved
        ):
            self._prefix += 1
        return self._positions[start : self._prefix]
