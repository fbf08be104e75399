"""The order in which problems are posed. It is endless, seeded and resumable.

The problem at each position is a pure function of (seed, number of problems, mixture,
position). The state is therefore one number, and a stream that is restored at any position
continues exactly as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rllib_dapo.data.mixture import Mixture
from rllib_dapo.errors import SettingError
from rllib_dapo.types import IntArray, ProblemRef

_ENDLESS_BITS = 31
_ENDLESS_MASK = (1 << _ENDLESS_BITS) - 1
_MASK64 = (1 << 64) - 1


class ProblemStream:
    """An endless sequence of references to problems.

    The stream goes through a finite set in epochs. Each epoch is a new permutation, so every
    problem comes exactly once per epoch; a batch may reach from one epoch into the next. An
    endless environment (`num_problems=None`) gets pseudo-random indices in [0, 2**31),
    all different for the first 2**31 positions. In a mixture each source has epochs of its
    own and is posed as often as its weight says.

    Args:
        num_problems: the size of the set, or None for an endless environment.
        seed: 0 to 2**63 - 1.
        mixture: the sources of the set, if it has several.
        shuffle: whether each epoch is a new permutation; otherwise each has the order of the
            files. An endless environment is not concerned.

    Raises:
        SettingError: a size below 1 or a seed out of range.
        ValueError: the mixture's sizes do not add up to `num_problems`.
    """

    def __init__(
        self,
        num_problems: int | None,
        seed: int,
        mixture: Mixture | None = None,
        shuffle: bool = True,
    ) -> None:
        if num_problems is not None and num_problems < 1:
            raise SettingError(f"a stream over {num_problems} problems: it needs at least 1")
        if not 0 <= seed < 1 << 63:
            raise SettingError(f"seed={seed}: use 0 to 2**63 - 1", "seed")
        self.num_problems = None if num_problems is None else int(num_problems)
        if mixture is not None and mixture.starts[-1] != num_problems:
            raise ValueError(f"a mixture of {mixture.starts[-1]} of {num_problems} problems")
        self.seed = int(seed)
        self.mixture = mixture
        self.shuffle = shuffle
        self._position = 0
        self._orders: dict[int, tuple[int, IntArray]] = {}  # by source: (epoch, permutation)

    @property
    def position(self) -> int:
        """The number of references that have been taken."""
        return self._position

    @property
    def epoch(self) -> float | None:
        """How many epochs have passed, with fractions; None for an endless environment.

        For a mixture, this is the largest of `epochs`.
        """
        if self.num_problems is None:
            return None
        return max(self.epochs) if self.mixture else self._position / self.num_problems

    @property
    def epochs(self) -> tuple[float, ...]:
        """How many epochs of each source of the mixture have passed; empty without a mixture."""
        if self.mixture is None:
            return ()
        draws = self.mixture.draws(self._position, self.seed)
        return tuple(n / size for n, size in zip(draws, self.mixture.sizes, strict=True))

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

    def get_state(self) -> dict[str, Any]:
        """The position, with the size, seed and mixture for which it is valid, as plain values."""
        state: dict[str, Any] = {
            "position": self._position,
            "seed": self.seed,
            "num_problems": self.num_problems,
        }
        if not self.shuffle:
            state["shuffle"] = False
        return state if self.mixture is None else state | {"mixture": _described(self.mixture)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a saved state.

        Raises:
            SettingError: the state belongs to another seed, data set or mixture, where
                the same position has another problem; or it is not the state of a stream.
        """
        missing = {"position", "seed", "num_problems"} - set(state)
        if missing:
            raise SettingError(
                f"the saved state of the problem stream lacks {', '.join(sorted(missing))}"
            )
        if state["num_problems"] != self.num_problems:
            raise SettingError(
                f"the saved problem stream ran over {_size(state['num_problems'])}, this one runs"
                f" over {_size(self.num_problems)}: restore with the data set (and limit,"
                " deduplicate) of the saved run, or start a new run from its weights"
            )
        if state.get("shuffle", True) != self.shuffle:
            raise SettingError(
                f"shuffle={self.shuffle}, but the saved problem stream used"
                f" shuffle={state.get('shuffle', True)}: restore with that value, or start a new"
                " run from its weights",
                "shuffle",
            )
        saved = state.get("mixture")
        own = None if self.mixture is None else _described(self.mixture)
        if saved != own:
            raise SettingError(
                f"the saved problem stream ran over {_parts(saved)}, this one runs over"
                f" {_parts(own)}: restore with the sources and weights of the saved run, or start"
                " a new run from its weights"
            )
        if state["seed"] != self.seed:
            raise SettingError(
                f"seed={self.seed}, but the saved problem stream used seed={state['seed']}:"
                " restore with that seed, or start a new run from its weights",
                "seed",
            )
        position = int(state["position"])
        if position < 0:
            raise SettingError(
                f"the saved state of the problem stream has the impossible position {position}"
            )
        self._position = position

    def _at(self, position: int) -> ProblemRef:
        if self.num_problems is None:
            index = _scatter(self.seed, position)
        elif self.mixture is not None:
            source, draw = self.mixture.at(position, self.seed)
            epoch, offset = divmod(draw, self.mixture.sizes[source])
            index = self.mixture.starts[source] + int(self._permutation(epoch, source)[offset])
        else:
            epoch, offset = divmod(position, self.num_problems)
            index = int(self._permutation(epoch, 0)[offset])
        # Index and reset seed come from different words, so that they are independent.
        return ProblemRef(
            position, index, _mix(_mix(self.seed ^ 0xA5A5) ^ position) & _ENDLESS_MASK
        )

    def _permutation(self, epoch: int, source: int) -> IntArray:
        known = self._orders.pop(source, None)
        if known is None or known[0] != epoch:
            known = None  # free the old permutation before the new one takes memory
            if self.mixture is None:
                assert self.num_problems is not None  # noqa: S101 - the caller has checked
                size, entropy = self.num_problems, [self.seed, epoch]
            else:
                size, entropy = self.mixture.sizes[source], [self.seed, epoch, source + 1]
            generator = np.random.default_rng(entropy)
            known = (epoch, generator.permutation(size) if self.shuffle else np.arange(size))
        self._orders[source] = known
        return known[1]


def _described(mixture: Mixture) -> list[list[Any]]:
    """The size and the weight of each source, as plain values."""
    pairs = zip(mixture.sizes, mixture.weights, strict=True)
    return [[size, str(weight)] for size, weight in pairs]


def _parts(described: list[list[Any]] | None) -> str:
    if not described:
        return "one data set"
    return "a mixture of " + " and ".join(f"{n} problems × {weight}" for n, weight in described)


def _size(num_problems: int | None) -> str:
    return "an endless environment" if num_problems is None else f"{num_problems} problems"


def _mix(word: int) -> int:
    """A bijection of 64 bits in which every input bit affects every output bit (splitmix64)."""
    word = (word + 0x9E3779B97F4A7C15) & _MASK64
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK64
    return word ^ (word >> 31)


def _scatter(seed: int, position: int) -> int:
    """A permutation of [0, 2**31) keyed by the seed, applied to the position.

    Adding a key, multiplying by an odd number and xor-ing with a right shift are each
    invertible modulo 2**31, so two positions never have the same index.
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
