"""Groups left over from earlier batches, for as long as they are fresh enough to train on."""

from __future__ import annotations

from collections.abc import Iterable

from rllib_dapo.errors import refuse
from rllib_dapo.types import Group


class Leftovers:
    """Kept groups that were in no batch yet.

    Their own log-probabilities are π_old in the ratio, so the objective is exact for them
    however old they are; but the older, the more of them is clipped.

    Args:
        max_age: policy versions that a group may be old when it is used. 0: only groups of
            the present version, which are left over where no update follows.

    Raises:
        SettingError: `max_age` is negative.
    """

    def __init__(self, max_age: int) -> None:
        if max_age < 0:
            refuse("max_staleness", max_age, "use 0 (no older groups) or more policy versions")
        self._max_age = max_age
        self._groups: dict[int, Group] = {}
        self.expired = 0
        """Groups that the last `take` dropped as too old."""

    def __len__(self) -> int:
        """Groups in store, fresh or not."""
        return len(self._groups)

    def put(self, groups: Iterable[Group]) -> None:
        """Store groups; a second group of one problem replaces the first."""
        self._groups |= {group.ref.position: group for group in groups}

    def take(self, version: int) -> tuple[Group, ...]:
        """Hand out all groups that are fresh enough, in problem order; drop the others.

        Args:
            version: of the present policy.
        """
        stored = self.get_state()
        fresh = tuple(g for g in stored if version - g.weights_version <= self._max_age)
        self.expired = len(stored) - len(fresh)
        self._groups = {}
        return fresh

    def get_state(self) -> tuple[Group, ...]:
        """The groups in store, in problem order."""
        return tuple(self._groups[position] for position in sorted(self._groups))

    def set_state(self, state: Iterable[Group]) -> None:
        """Have exactly these groups in store."""
        self._groups = {}
        self.put(state)
