"""The problems of several data sets, numbered through."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import overload

import numpy as np

from rllib_dapo.data.mixture import Mixture
from rllib_dapo.data.problem_set import Problem, ProblemSet
from rllib_dapo.types import IntArray


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
        """Number of problems of all sources together."""
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
        source = self.source_of(index % len(self))
        return self.parts[source][index % len(self) - self.mixture.starts[source]]

    def source_of(self, index: int) -> int:
        """The number of the source that problem `index` is of."""
        return bisect_right(self.mixture.starts, index) - 1

    def source_name(self, index: int) -> str:
        """The name of the source that problem `index` is of."""
        return self.mixture.names[self.source_of(index)]

    @property
    def distinct_of(self) -> IntArray:
        """int64[len], as of `ProblemSet`; what two sources share counts twice."""
        first, numbers = 0, []
        for part in self.parts:
            numbers.append(part.distinct_of + first)
            first += part.num_distinct
        return np.concatenate(numbers)
