"""The order in which problems are posed: endless, seeded, resumable.

Which problem stands at which position is a pure function of (seed, number of problems,
position). The state is therefore one number, and a restored stream cannot differ from an
uninterrupted one, wherever it was cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rllib_dapo.errors import SettingError
from rllib_dapo.types import IntArray, ProblemRef

_ENDLESS_BITS = 31
_ENDLESS_MASK = (1 << _ENDLESS_BITS) - 1
_MASK64 = (1 << 64) - 1


class ProblemStream:
    """An endless sequence of references to problems.

    A finite set is gone through in epochs: each is a fresh permutation, so every problem
    comes exactly once per epoch, and batches simply run on across the end of one. An
    endless environment (`num_problems=None`) gets pseudo-random indices in [0, 2**31),
    all different for the first 2**31 positions.

    Args:
        num_problems: size of the set, or None for an endless environment.
        seed: 0 … 2**63 - 1.

    Raises:
        SettingError: a size below 1 or a seed out of range.
    """

    def __init__(self, num_problems: int | None, seed: int) -> None:
        if num_problems is not None and num_problems < 1:
            raise SettingError(f"a stream over {num_problems} problems: it needs at least 1")
        if not 0 <= seed < 1 << 63:
            raise SettingError(f"seed={seed}: use 0 to 2**63 - 1", "seed")
        self.num_problems = None if num_problems is None else int(num_problems)
        self.seed = int(seed)
        self._position = 0
        self._order: tuple[int, IntArray] | None = None  # (epoch, its permutation)

    @property
    def position(self) -> int:
        """How many references have been taken."""
        return self._position

    @property
    def epoch(self) -> float | None:
        """How often the set has been gone through, in fractions; None when endless."""
        return None if self.num_problems is None else self._position / self.num_problems

    def take(self, n: int) -> list[ProblemRef]:
        """The next `n` references.

        Raises:
            ValueError: `n` is negative.
        """
        if n < 0:
            raise ValueError(f"take({n}): the stream does not run backwards")
        refs = [self._at(p) for p in range(self._position, self._position + n)]
        self._position += n
        return refs

    def get_state(self) -> dict[str, int | None]:
        """The position, and the size and seed it is valid for. Plain values only."""
        return {"position": self._position, "seed": self.seed, "num_problems": self.num_problems}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a saved state.

        Raises:
            SettingError: the state belongs to another seed or another data set, in which
                the same position would be another problem; or it is no such state.
        """
        missing = {"position", "seed", "num_problems"} - set(state)
        if missing:
            raise SettingError(f"a problem stream's state without {', '.join(sorted(missing))}")
        if state["num_problems"] != self.num_problems:
            raise SettingError(
                f"the saved problem stream ran over {_size(state['num_problems'])}, this one runs"
                f" over {_size(self.num_problems)}: restore with the data set (and limit,"
                " deduplicate) of the saved run, or start a new run from its weights"
            )
        if state["seed"] != self.seed:
            raise SettingError(
                f"seed={self.seed}, but the saved problem stream used seed={state['seed']}:"
                " restore with that seed, or start a new run from its weights",
                "seed",
            )
        position = int(state["position"])
        if position < 0:
            raise SettingError(f"a problem stream's state with the position {position}")
        self._position = position

    def _at(self, position: int) -> ProblemRef:
        if self.num_problems is None:
            index = _scatter(self.seed, position)
        else:
            epoch, offset = divmod(position, self.num_problems)
            index = int(self._permutation(epoch)[offset])
        # One word for the index and another for the reset, so that neither tells the other.
        return ProblemRef(
            position, index, _mix(_mix(self.seed ^ 0xA5A5) ^ position) & _ENDLESS_MASK
        )

    def _permutation(self, epoch: int) -> IntArray:
        if self._order is None or self._order[0] != epoch:
            assert self.num_problems is not None  # noqa: S101 - the caller has checked
            self._order = None  # free the old one first: one permutation at a time
            rng = np.random.default_rng([self.seed, epoch])
            self._order = (epoch, rng.permutation(self.num_problems))
        return self._order[1]


def _size(num_problems: int | None) -> str:
    return "an endless environment" if num_problems is None else f"{num_problems} problems"


def _mix(word: int) -> int:
    """A 64-bit bijection in which every input bit moves every output bit (splitmix64)."""
    word = (word + 0x9E3779B97F4A7C15) & _MASK64
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK64
    return word ^ (word >> 31)


def _scatter(seed: int, position: int) -> int:
    """A permutation of [0, 2**31) keyed by the seed, applied to the position.

    Adding a key, multiplying by an odd number and xor-ing with a right shift can each be
    undone modulo 2**31, so two positions never share an index.
    """
    lap, word = position >> _ENDLESS_BITS, position & _ENDLESS_MASK
    key = _mix(_mix(seed) ^ lap)
    for _ in range(4):
        key = _mix(key)
        word = (word + key) & _ENDLESS_MASK
        word ^= word >> 15
        word = (word * (key >> 32 | 1)) & _ENDLESS_MASK
        word ^= word >> 13
    return word
