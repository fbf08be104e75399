"""Several sources in one stream, each with its share.

Which source stands at which position is a pure function of (weights, seed, position): the
first source takes its share of the positions as evenly as whole numbers allow, the second
its share of those left over, and so on. Nothing is drawn at random, so over any stretch of
positions a source is posed as often as its weight says, give or take one for each source.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

import numpy as np

from rllib_dapo.errors import DataError
from rllib_dapo.types import IntArray


@dataclass(frozen=True)
class Mixture:
    """The sources of a set of problems, in the order in which they are numbered.

    Attributes:
        names: what each is called.
        sizes: problems of each; the first has the numbers 0 to sizes[0] - 1, and so on.
        weights: share of each, up to a common factor; above 0.

    Example: `Mixture(("gsm8k", "math"), (7473, 7500), (Fraction(1), Fraction(3)))`.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    weights: tuple[Fraction, ...]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The number of the first problem of each source, and how many there are in all."""
        return tuple(np.cumsum((0, *self.sizes)).tolist())

    def kept(self, indices: IntArray) -> Mixture:
        """The same mixture over some of its problems only.

        Args:
            indices: int64[n], those that stay, ascending.

        Raises:
            DataError: nothing stays of a source.
        """
        ends = np.searchsorted(indices, self.starts).tolist()
        sizes = tuple(end - start for start, end in pairwise(ends))
        for name, size in zip(self.names, sizes, strict=True):
            if size == 0:
                raise DataError(f"no problem of the source {name!r} is left; leave it out")
        return Mixture(self.names, sizes, self.weights)

    def draws(self, position: int, seed: int) -> tuple[int, ...]:
        """How many of the first `position` problems are of each source."""
        counts, left = [], position
        for (top, bottom), offset in zip(self._shares, self._offsets(seed), strict=True):
            count = (left * top + offset) // bottom
            counts.append(count)
            left -= count
        return tuple(counts)

    def at(self, position: int, seed: int) -> tuple[int, int]:
        """The source at a position, and how often it stood at an earlier one."""
        before, after = self.draws(position, seed), self.draws(position + 1, seed)
        source = next(i for i, count in enumerate(before) if after[i] != count)
        return source, before[source]

    def first(self, n: int) -> IntArray:
        """int64[min(n, all)], the numbers of n problems: the first of each source, by weight.

        A source that has run out leaves its share to the others.
        """
        times = [
            (np.arange(size) + 0.5) / float(weight)
            for size, weight in zip(self.sizes, self.weights, strict=True)
        ]
        return np.argsort(np.concatenate(times), kind="stable")[:n]

    @cached_property
    def _shares(self) -> tuple[tuple[int, int], ...]:
        """Of what the sources before it leave over: the share of each, as a fraction."""
        left = [sum(self.weights[i:], Fraction(0)) for i in range(len(self.weights))]
        shares = [weight / rest for weight, rest in zip(self.weights, left, strict=True)]
        return tuple((share.numerator, share.denominator) for share in shares)

    def _offsets(self, seed: int) -> tuple[int, ...]:
        """Where in its rhythm each source begins: another place for another seed."""
        if self._known_offsets.get(seed) is None:
            generator = random.Random(seed)
            self._known_offsets[seed] = tuple(
                generator.getrandbits(64) * bottom >> 64 for _, bottom in self._shares
            )
        return self._known_offsets[seed]

    @cached_property
    def _known_offsets(self) -> dict[int, tuple[int, ...]]:
        return {}
