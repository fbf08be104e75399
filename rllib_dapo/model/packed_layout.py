"""Where the sequences of a packed row lie, as tensors that attention can index with."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rllib_dapo.model.attention_buckets import attention_buckets
from rllib_dapo.types import IntArray


class VarlenIndex(NamedTuple):
    """Sequences end to end, for kernels that know where each one starts.

    Attributes:
        gather: int64[E] of `PackedRows`, or None.
        scatter: int64[N] of `PackedRows`, or None.
        starts: int32[S + 1], where sequences start, and the end of the last one.
        longest: tokens of the longest sequence.
    """

    gather: Tensor | None
    scatter: Tensor | None
    starts: Tensor
    longest: int


class BucketIndex(NamedTuple):
    """Sequences padded into buckets of [n, L] slots, M = Σ n·L slots in all.

    Attributes:
        shapes: (n, L) of each bucket.
        gather: int64[M], position in the flat row of each slot's token; 0 for padding.
        scatter: int64[N], the slot whose result each position of the flat row gets.
    """

    shapes: list[tuple[int, int]]
    gather: Tensor
    scatter: Tensor


class PackedLayout:
    """Where the sequences of one flat row lie, ready for either way of attention.

    Deliberately not a dataclass: FSDP copies those for every layer it calls, and with them
    would go what is worked out here once.

    Args:
        lengths: int64[S], `gather`: int64[E] or None, `scatter`: int64[N] or None, all of
            `PackedRows`.
        gather: see above.
        scatter: see above.
        device: where the indices go.
    """

    def __init__(
        self,
        lengths: IntArray,
        gather: IntArray | None,
        scatter: IntArray | None,
        device: torch.device | str,
    ) -> None:
        self._lengths, self._gather, self._scatter = lengths, gather, scatter
        self._device = device
        self.longest = int(lengths.max(initial=0))

    @cached_property
    def varlen(self) -> VarlenIndex:
        """For kernels that read sequences end to end."""
        starts = np.concatenate([[0], np.cumsum(self._lengths)]).astype(np.int32)
        gather, scatter = self._gather, self._scatter
        return VarlenIndex(
            gather=None if gather is None else self._tensor(gather),
            scatter=None if scatter is None else self._tensor(scatter),
            starts=self._tensor(starts),
            longest=self.longest,
        )

    @cached_property
    def buckets(self) -> BucketIndex:
        """For attention on padded buckets."""
        lengths = self._lengths
        starts = np.cumsum(lengths) - lengths
        shapes, slots, tokens = [], [], []
        first_slot = 0
        for rows in attention_buckets(lengths):
            width = int(lengths[rows].max())
            columns = np.arange(width)
            is_token = (columns < lengths[rows, None]).ravel()
            at = (starts[rows, None] + columns).ravel()[is_token]
            shapes.append((len(rows), width))
            slots.append(first_slot + np.flatnonzero(is_token))
            tokens.append(at)
            first_slot += len(rows) * width
        slot, token = np.concatenate(slots), np.concatenate(tokens)
        gather = np.zeros(first_slot, np.int64)
        gather[slot] = token if self._gather is None else self._gather[token]
        scatter = np.empty(len(token), np.int64)
        scatter[token] = slot
        if self._scatter is not None:
            scatter = scatter[self._scatter]
        return BucketIndex(shapes, self._tensor(gather), self._tensor(scatter))

    def _tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)
