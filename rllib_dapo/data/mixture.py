"""Several data sets in one stream, each with its share.

The source of each position is a pure function of (weights, seed, position). The first source
takes its share of the positions as evenly as whole numbers allow, the second source takes its
share of the positions that are left over, and so on. Nothing is drawn at random, so over any
stretch of positions a source is posed as often as its weight says, give or take one problem
for each source.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import overload

import numpy as np
import numpy.typing as npt

from rllib_dapo.data.problem_set import Problem, ProblemSet
from rllib_dapo.errors import DataError
from rllib_dapo.types import IntArray


@dataclass(frozen=True)
class Mixture:
    """The sources of a set of problems, in the order in which their problems are numbered.

    Attributes:
        names: what each source is called.
        sizes: the number of problems of each source. The problems of the first source have
            the numbers 0 to sizes[0] - 1, those of the second follow, and so on.
        weights: the share of each source, up to a common factor; above 0.

    Example: `Mixture(("gsm8k", "math"), (7473, 7500), (Fraction(1), Fraction(3)))`.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    weights: tuple[Fraction, ...]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The number of the first problem of each source, and at the end the size of all."""
        return tuple(np.cumsum((0, *self.sizes)).tolist())

    def kept(self, indices: IntArray) -> Mixture:
        """The same mixture over some of its problems only.

        Args:
            indices: int64[n], the numbers of the problems that stay, ascending.

        Raises:
            DataError: no problem of a source stays.
        """
        ends = np.searchsorted(indices, self.starts).tolist()
        sizes = tuple(end - start for start, end in pairwise(ends))
        for name, size in zip(self.names, sizes, strict=True):
            if size == 0:
                raise DataError(f"no problem of the source {name!r} is left; leave it out")
        return Mixture(self.names, sizes, self.weights)

    def draws(self, position: int, seed: int) -> tuple[int, ...]:
        """How many of the first `position` problems come from each source."""
        counts, left = [], position
        for (top, bottom), offset in zip(self._shares, self._offsets(seed), strict=True):
            count = (left * top + offset) // bottom
            counts.append(count)
            left -= count
        return tuple(counts)

    def at(self, position: int, seed: int) -> tuple[int, int]:
        """The source at a position, and the number of earlier positions that it had."""
        before, after = self.draws(position, seed), self.draws(position + 1, seed)
        source = next(i for i, count in enumerate(before) if after[i] != count)
        return source, before[source]

    def first(self, n: int) -> IntArray:
        """int64[min(n, all)], the numbers of n problems: the first of each source, by weight.

        A source that runs out leaves its share to the others.
        """
        times = [
            (np.arange(size) + 0.5) / float(weight)
            for size, weight in zip(self.sizes, self.weights, strict=True)
        ]
        return np.argsort(np.concatenate(times), kind="stable")[:n]

    @cached_property
    def _shares(self) -> tuple[tuple[int, int], ...]:
        """The share that each source takes of what the sources before it leave over."""
        left = [sum(self.weights[i:], Fraction(0)) for i in range(len(self.weights))]
        shares = [weight / rest for weight, rest in zip(self.weights, left, strict=True)]
        return tuple((share.numerator, share.denominator) for share in shares)

    def _offsets(self, seed: int) -> tuple[int, ...]:
        """Where in its rhythm each source begins; this depends on the seed."""
        if self._known_offsets.get(seed) is None:
            generator = random.Random(seed)
            self._known_offsets[seed] = tuple(
                generator.getrandbits(64) * bottom >> 64 for _, bottom in self._shares
            )
        return self._known_offsets[seed]

    @cached_property
    def _known_offsets(self) -> dict[int, tuple[int, ...]]:
        return {}


class MixedProblems(Sequence[Problem]):
    """The problems of the sources of a mixture, one source after the other.

    Args:
        parts: one data set for each source.
        mixture: their names, sizes and weights.
    """

    def __init__(self, parts: Sequence[ProblemSet], mixture: Mixture) -> None:
        self.parts = tuple(parts)
        self.mixture = mixture

    @property
    def name(self) -> str:
        """The names of all sources."""
        return " + ".join(self.mixture.names)

    @property
    def integer_answers(self) -> bool:
        """Whether every ground truth is an integer without a unit."""
        return all(part.integer_answers for part in self.parts)

    def __len__(self) -> int:
        """The number of problems of all sources together."""
        return self.mixture.starts[-1]

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> list[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | list[Problem]:
        """Problem number `index`; a slice gives a list."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        source = self._source_of(index)
        return self.parts[source][index - self.mixture.starts[source]]

    def source_name(self, index: int) -> str:
        """The name of the source of problem `index`."""
        return self.mixture.names[self._source_of(index)]

    def _source_of(self, index: int) -> int:
        return bisect_right(self.mixture.starts, index) - 1

    def digests(self) -> npt.NDArray[np.uint64]:
        """uint64[len], as in `ProblemSet`."""
        return np.concatenate([part.digests() for part in self.parts])

    @property
    def distinct_of(self) -> IntArray:
        """int64[len], as in `ProblemSet`; a problem that two sources share counts twice."""
        first, numbers = 0, []
        for part in self.parts:
            numbers.append(part.distinct_of + first)
            first += part.num_distinct
        return np.concatenate(numbers)
