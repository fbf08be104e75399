"""Problems that wait for a runner, and how often runners have failed on them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from rllib_dapo.types import ProblemRef


class ProblemQueue:
    """Problems that no runner has yet.

    A problem whose runner failed goes back to the front. If a second runner fails on the same
    problem, the problem itself may be the cause: it becomes a *suspect*, which is given only to
    a runner that has nothing else, so that no other problems are lost with it.

    Args:
        max_attempts: after this many failed runners a problem is given up; at least 1.
    """

    def __init__(self, max_attempts: int) -> None:
        self._max_attempts = max_attempts
        self._waiting: deque[ProblemRef] = deque()
        self._suspects: deque[ProblemRef] = deque()
        self._failed_attempts: Counter[ProblemRef] = Counter()

    def __len__(self) -> int:
        """Problems that wait, suspects included."""
        return len(self._waiting) + len(self._suspects)

    def add(self, refs: Sequence[ProblemRef]) -> None:
        """Add problems behind those that wait already."""
        self._waiting.extend(refs)

    def next(self) -> ProblemRef | None:
        """Take out the first problem that is not a suspect; None if there is none."""
        return self._waiting.popleft() if self._waiting else None

    def next_suspect(self) -> ProblemRef | None:
        """Take out the first suspect; None if there is none."""
        return self._suspects.popleft() if self._suspects else None

    def is_suspect(self, ref: ProblemRef) -> bool:
        """Whether more than one runner has failed on a problem."""
        return self._failed_attempts[ref] > 1

    def ask_again(self, refs: Sequence[ProblemRef]) -> list[ProblemRef]:
        """Put problems back whose runner has failed, before all others.

        Args:
            refs: what the runner had in flight.

        Returns:
            The problems that are given up instead: too many runners have failed on them.
        """
        given_up = []
        again = sorted(refs, key=lambda ref: ref.position)
        self._failed_attempts.update(again)
        for ref in reversed(again):
            if self._failed_attempts[ref] >= self._max_attempts:
                self.resolve(ref)
                given_up.append(ref)
            elif self.is_suspect(ref):
                self._suspects.appendleft(ref)
            else:
                self._waiting.appendleft(ref)
        return given_up

    def resolve(self, ref: ProblemRef) -> None:
        """Forget the failed attempts on a problem that has a group or was given up."""
        self._failed_attempts.pop(ref, None)

    def withdraw(self) -> list[ProblemRef]:
        """Take out all problems that wait."""
        refs = [*self._waiting, *self._suspects]
        self._waiting.clear()
        self._suspects.clear()
        return refs
