"""Index tensors that tell attention where the sequences of a packed row are.

Attention on padding computes sequences of similar length together, in buckets.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rllib_dapo.types import IntArray

# Attention of one sequence costs O(L²), and one more call takes about 0.1 ms for forward and
# backward pass. Therefore many calls cost less than much padding. On one CPU core, with lognormal
# lengths of mean 100 and 4 heads of 32, the relative times are: 1.00 without padding (94
# calls), 1.03 with up to 5% (26 calls), 1.54 with up to 25% (6 calls).
_WASTE = 0.05
_FREE_SLOTS = 32  # Padding of this many tokens costs less than a call.


def attention_buckets(lengths: IntArray) -> list[IntArray]:
    """Cut sequences, sorted by length, into buckets with little padding.

    Starting from the longest sequence, a bucket [n, L] takes the next sequence as long as its
    padding satisfies

        n·L − Σ lengths  ≤  max(5% of Σ lengths, 32),

    so a very long sequence is alone in its bucket.

    Args:
        lengths: int64[S], tokens of each sequence.

    Returns:
        Arrays of sequence numbers, longest first; each sequence is in exactly one.
    """
    order = np.argsort(-lengths, kind="stable")
    buckets = []
    start = longest = tokens = 0
    for i, length in enumerate(lengths[order].tolist()):
        slots = (i + 1 - start) * longest
        if i > start and slots - tokens - length > max(_WASTE * (tokens + length), _FREE_SLOTS):
            buckets.append(order[start:i])
            start, tokens = i, 0
        if i == start:
            longest = length
        tokens += length
    return [*buckets, order[start:]] if len(order) else []


class BucketIndex(NamedTuple):
    """Sequences padded into buckets of [n, L] slots; there are M = Σ n·L slots in all.

    Attributes:
        shapes: (n, L) of each bucket.
        gather: int64[M], the position in the flat row of each slot's token; 0 for padding.
        scatter: int64[N], the slot whose result each position of the flat row gets.
    """

    shapes: list[tuple[int, int]]
    gather: Tensor
    scatter: Tensor


class PackedLayout:
    """Where the sequences of one flat row are, for both kinds of attention.

    This is not a dataclass on purpose: FSDP copies dataclasses for every layer it calls, and a
    copy would compute the cached indices again.

    Args:
        lengths: int64[S], see `PackedRows`.
        gather: int64[E] or None, see `PackedRows`.
        scatter: int64[N] or None, see `PackedRows`.
        device: the device of the index tensors.
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
    def gather(self) -> Tensor | None:
        """int64[E], see `PackedRows`."""
        return None if self._gather is None else self._tensor(self._gather)

    @cached_property
    def scatter(self) -> Tensor | None:
        """int64[N], see `PackedRows`."""
        return None if self._scatter is None else self._tensor(self._scatter)

    @cached_property
    def starts(self) -> Tensor:
        """int32[S + 1], where each sequence starts, and the end of the last one."""
        return self._tensor(np.concatenate([[0], np.cumsum(self._lengths)]).astype(np.int32))

    @cached_property
    def buckets(self) -> BucketIndex:
        """The indices for attention on padded buckets."""
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
