"""The buffer of kept groups that no batch has used, while they are fresh enough to train on."""

from __future__ import annotations

from collections.abc import Iterable

from rllib_dapo.types import Group


class GroupBuffer:
    """Kept groups beyond a full batch, which come first in the next one.

    The groups' own log-probabilities are π_old in the ratio, so the objective is exact for
    them however stale they are; but the staler they are, the more of their tokens is clipped.

    Args:
        max_staleness: how many policy versions old a group may be when it is used; 0 or more.
            0 hands out groups of the present version only, which stay in the buffer when no
            update follows a batch.
    """

    def __init__(self, max_staleness: int) -> None:
        self._max_staleness = max_staleness
        self._groups: dict[int, Group] = {}
        self.expired = 0
        """Groups that the last `take` dropped because they were too stale."""

    def __len__(self) -> int:
        """Groups in the buffer, fresh or not."""
        return len(self._groups)

    def put(self, groups: Iterable[Group]) -> None:
        """Add groups; a second group of one problem replaces the first."""
        self._groups |= {group.ref.position: group for group in groups}

    def take(self, version: int) -> tuple[Group, ...]:
        """Empty the buffer: return the groups that are fresh enough, and drop the others.

        Args:
            version: the version of the present policy.

        Returns:
            The fresh groups, in problem order.
        """
        stored = self.get_state()
        fresh = tuple(g for g in stored if version - g.weights_version <= self._max_staleness)
        self.expired = len(stored) - len(fresh)
        self._groups = {}
        return fresh

    def get_state(self) -> tuple[Group, ...]:
        """The groups in the buffer, in problem order."""
        return tuple(self._groups[position] for position in sorted(self._groups))

    def set_state(self, state: Iterable[Group]) -> None:
        """Replace what is in the buffer by these groups."""
        self._groups = {}
        self.put(state)
