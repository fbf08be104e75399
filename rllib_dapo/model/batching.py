"""Cutting a `TokenBatch` into minibatches, learners' shares and padded micro-batches.

    TokenBatch --minibatches--> TokenBatch per optimizer step
               --split_for_ranks--> TokenBatch per learner
               --microbatches, select--> TokenBatch per forward pass
               --pad_rows--> PaddedRows, what the model reads

Every cut takes each row exactly once; which cut is made changes nothing in the loss,
whose weights are made from the whole minibatch (`ops.loss.loss_weights`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rllib_dapo.errors import SettingError, TrainingError
from rllib_dapo.settings.checks import check_value
from rllib_dapo.types import IntArray, TokenBatch


def select(batch: TokenBatch, rows: npt.ArrayLike) -> TokenBatch:
    """The sequences `rows` (int[R], or bool[B]) of a batch, in the order asked for.

    Group numbers stay as they are.
    """
    picked = np.asarray(rows)
    picked = np.flatnonzero(picked) if picked.dtype == np.bool_ else picked.astype(np.int64)
    tokens = ragged_indices(batch.completion_lengths, picked)
    return TokenBatch(
        token_ids=batch.token_ids[ragged_indices(batch.lengths, picked)],
        prompt_lengths=batch.prompt_lengths[picked],
        completion_lengths=batch.completion_lengths[picked],
        old_logprobs=batch.old_logprobs[tokens],
        advantages=batch.advantages[picked],
        loss_mask=batch.loss_mask[picked],
        groups=batch.groups[picked],
        weights_versions=batch.weights_versions[tokens],
        importance_weights=batch.importance_weights[tokens],
        reference_logprobs=batch.reference_logprobs[tokens],
    )


def concatenate(batches: Sequence[TokenBatch], *, distinct_groups: bool = False) -> TokenBatch:
    """One batch of all sequences, in order; of no batches, an empty one.

    Args:
        batches: any number, empty ones too.
        distinct_groups: True numbers the groups of each batch after those of the batches
            before it. False keeps the numbers, for parts of what was one batch.
    """
    groups = [batch.groups for batch in batches]
    if distinct_groups:
        counts = [int(g.max()) + 1 if len(g) else 0 for g in groups]
        starts = np.cumsum([0, *counts])
        groups = [g + start for g, start in zip(groups, starts[:-1], strict=True)]
    no_ints, no_floats = np.zeros(0, np.int64), np.zeros(0, np.float32)
    return TokenBatch(
        token_ids=np.concatenate([no_ints, *(b.token_ids for b in batches)]),
        prompt_lengths=np.concatenate([no_ints, *(b.prompt_lengths for b in batches)]),
        completion_lengths=np.concatenate([no_ints, *(b.completion_lengths for b in batches)]),
        old_logprobs=np.concatenate([no_floats, *(b.old_logprobs for b in batches)]),
        advantages=np.concatenate([no_floats, *(b.advantages for b in batches)]),
        loss_mask=np.concatenate([np.zeros(0, np.bool_), *(b.loss_mask for b in batches)]),
        groups=np.concatenate([no_ints, *groups]),
        weights_versions=np.concatenate([no_ints, *(b.weights_versions for b in batches)]),
        importance_weights=np.concatenate([no_floats, *(b.importance_weights for b in batches)]),
        reference_logprobs=np.concatenate([no_floats, *(b.reference_logprobs for b in batches)]),
    )


def minibatches(
    batch: TokenBatch, num_minibatches: int, rng: np.random.Generator
) -> list[TokenBatch]:
    """One pass over the batch in random order, one part per optimizer step.

    Sizes differ by at most one row, and no row is repeated to fill the last part. With
    fewer rows than `num_minibatches` there are only as many parts as rows: an optimizer
    step on nothing would still decay the weights.
    """
    if num_minibatches < 1:
        raise SettingError(
            f"num_minibatches={num_minibatches}: at least 1 optimizer step per batch is needed",
            "num_minibatches",
        )
    parts = min(num_minibatches, len(batch))
    order = rng.permutation(len(batch))
    return [select(batch, rows) for rows in np.array_split(order, parts)] if parts else []


def split_for_ranks(batch: TokenBatch, world_size: int) -> list[TokenBatch]:
    """A share for each of `world_size` learners, balanced by tokens.

    The longest row first, each to the learner with the fewest tokens so far. Rows keep
    their order within a share. A share is empty only if there are fewer rows than
    learners; such a learner must still take part in every collective call.
    """
    if world_size < 1:
        raise SettingError(f"num_learners={world_size}: at least 1 share is needed", "num_learners")
    shares: list[list[int]] = [[] for _ in range(world_size)]
    tokens = [0] * world_size
    for row in np.argsort(-batch.lengths, kind="stable"):
        rank = min(range(world_size), key=tokens.__getitem__)
        shares[rank].append(int(row))
        tokens[rank] += int(batch.lengths[row])
    return [select(batch, np.array(sorted(share), dtype=np.int64)) for share in shares]


def microbatches(lengths: IntArray, max_tokens: int) -> list[IntArray]:
    """Rows that go through the model together, padding included in the budget.

    Sorted by length, so that little is padded, and cut as late as rows × longest ≤
    `max_tokens` allows. The longest come first: what does not fit into memory fails at
    once. A row longer than the budget goes alone.

    Args:
        lengths: int64[B], tokens of each row (`batch.lengths`).
        max_tokens: the budget.

    Returns:
        Arrays of row numbers; each row is in exactly one.
    """
    check_value("max_tokens_per_microbatch", max_tokens)
    order = np.argsort(-lengths, kind="stable")
    parts = []
    start = 0
    while start < len(order):
        longest = max(int(lengths[order[start]]), 1)
        stop = start + max(max_tokens // longest, 1)
        parts.append(order[start:stop])
        start = stop
    return parts


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """B sequences padded on the right to L tokens, and where their completions are.

    The model maps `input_ids` to hidden states [B, L, H]. The state at position p
    predicts the token at p + 1, so that of completion token t of row i is at position
    prompt_lengths[i] + t − 1 (for t = 0, the end of the prompt). Only these states need
    the lm_head:

        hidden.reshape(B * L, H)[predictors] -> [T, H], predicts targets [T]

    in the order of `TokenBatch.old_logprobs`: no prompt token and no padding among them.

    Attributes:
        input_ids: int64[B, L].
        attention_mask: int64[B, L], 1 for tokens, 0 for padding; made from the lengths,
            so a padding id that is also an EOS id does no harm.
        position_ids: int64[B, L], 0 … L − 1 in every row.
        predictors: int64[T], row · L + position of the state that predicts each target.
        targets: int64[T], completion token ids of all rows, end to end.

    Example: rows [1,4 | 5,2] and [1,4 | 6] (prompt | completion), pad_id 0:
        input_ids [[1,4,5,2], [1,4,6,0]], predictors [1,2, 5], targets [5,2, 6].
    """

    input_ids: IntArray
    attention_mask: IntArray
    position_ids: IntArray
    predictors: IntArray
    targets: IntArray


def pad_rows(batch: TokenBatch, pad_id: int) -> PaddedRows:
    """Lay out a (micro-)batch for the model. See `PaddedRows`.

    Raises:
        TrainingError: a completion follows an empty prompt; nothing predicts its start.
    """
    lengths = batch.lengths
    orphans = np.flatnonzero((batch.prompt_lengths < 1) & (batch.completion_lengths > 0))
    if len(orphans):
        raise TrainingError(
            f"row {orphans[0]} has a completion but prompt_lengths=0, so no token predicts its "
            "first one; begin prompts with a BOS token or use a prompt_template"
        )
    rows, width = len(batch), int(lengths.max(initial=0))
    columns = np.arange(width)
    is_token = columns < lengths[:, None]
    input_ids = np.full((rows, width), pad_id, dtype=np.int64)
    input_ids[is_token] = batch.token_ids

    first = np.arange(rows) * width + batch.prompt_lengths - 1
    predictors = ragged_ranges(first, batch.completion_lengths)
    return PaddedRows(
        input_ids=input_ids,
        attention_mask=is_token.astype(np.int64),
        position_ids=np.broadcast_to(columns, (rows, width)).copy(),
        predictors=predictors,
        targets=input_ids.reshape(-1)[predictors + 1],
    )


def idle_row(token_id: int) -> TokenBatch:
    """One row that weighs nothing: a prompt and a masked completion of one token each.

    For a learner that has no rows left but must take part in a forward pass of the others.
    """
    one, zero = np.ones(1, np.int64), np.zeros(1, np.int64)
    nothing = np.zeros(1, np.float32)
    return TokenBatch(
        token_ids=np.full(2, token_id, np.int64),
        prompt_lengths=one,
        completion_lengths=one,
        old_logprobs=nothing,
        advantages=nothing,
        loss_mask=np.zeros(1, np.bool_),
        groups=zero,
        weights_versions=zero,
        importance_weights=nothing,
        reference_logprobs=nothing,
    )


def ragged_indices(lengths: IntArray, rows: IntArray) -> IntArray:
    """Where the elements of `rows` lie in an end-to-end array of rows of `lengths`."""
    starts = np.cumsum(lengths) - lengths
    return ragged_ranges(starts[rows], lengths[rows])


def ragged_ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """The ranges [start, start + length), end to end: (3, 9), (2, 1) -> 3, 4, 9."""
    offsets = np.cumsum(lengths) - lengths
    return np.repeat(starts - offsets, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)
