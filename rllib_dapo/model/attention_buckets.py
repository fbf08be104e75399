"""Sequences of similar length, to be padded to the same one for attention."""

from __future__ import annotations

import numpy as np

from rllib_dapo.types import IntArray

# Attention of one sequence costs O(L²), one more call some 0.1 ms for forward and backward:
# little padding is worth many calls. On one CPU core, lognormal lengths of mean 100 and
# 4 heads of 32: 1.00 without padding (94 calls), 1.03 at 5% (26), 1.54 at 25% (6).
_WASTE = 0.05
_FREE_SLOTS = 32  # padding that costs less than a call


def attention_buckets(lengths: IntArray) -> list[IntArray]:
    """Cut sequences, sorted by length, into buckets with little padding.

    From the longest on, a bucket [n, L] takes the next sequence as long as its padding

        n·L − Σ lengths  ≤  max(5% of Σ lengths, 32)

    so a very long sequence is alone in its bucket.

    Args:
        lengths: int64[S], tokens.

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
