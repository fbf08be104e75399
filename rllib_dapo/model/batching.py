"""Functions that cut a `TokenBatch` into minibatches, learners' shares and micro-batches.

    TokenBatch --minibatches--> TokenBatch per optimizer step
               --split_for_ranks--> TokenBatch per learner
               --microbatches, select--> TokenBatch per forward pass
               --pad_rows--> PaddedRows, what the model reads

Every cut takes each row exactly once. No cut changes the loss, because its weights are made
from the whole minibatch (`losses.aggregation.loss_weights`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from rllib_dapo.errors import SettingError, TrainingError
from rllib_dapo.settings.checks import check_value
from rllib_dapo.types import IntArray, TokenBatch

_PER_SEQUENCE = ("prompt_lengths", "completion_lengths", "advantages", "loss_mask", "groups")
_PER_COMPLETION_TOKEN = (
    "old_logprobs", "weights_versions", "importance_weights", "reference_logprobs",
)  # fmt: skip


def select(batch: TokenBatch, rows: npt.ArrayLike) -> TokenBatch:
    """Return the sequences `rows` (int[R], or bool[B]) of a batch, in the order of `rows`.

    Group numbers stay as they are.
    """
    picked = np.asarray(rows)
    picked = np.flatnonzero(picked) if picked.dtype == np.bool_ else picked.astype(np.int64)
    tokens = ragged_indices(batch.completion_lengths, picked)
    return TokenBatch(
        token_ids=batch.token_ids[ragged_indices(batch.lengths, picked)],
        **{name: getattr(batch, name)[picked] for name in _PER_SEQUENCE},
        **{name: getattr(batch, name)[tokens] for name in _PER_COMPLETION_TOKEN},
    )


def concatenate(batches: Sequence[TokenBatch], *, distinct_groups: bool = False) -> TokenBatch:
    """Return one batch of all sequences, in order; without any batch, an empty one.

    Args:
        batches: any number of batches, which may be empty.
        distinct_groups: True numbers the groups of each batch after those of the batches
            before it. False keeps the numbers, for parts of one batch.
    """
    parts = [select(idle_row(0), []), *batches]  # An empty one gives the types of the columns.
    columns = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(TokenBatch)
    }
    if distinct_groups:
        counts = [int(part.groups.max(initial=-1)) + 1 for part in parts]
        starts = np.cumsum(counts) - counts
        columns["groups"] += np.repeat(starts, [len(part) for part in parts])
    return TokenBatch(**columns)


def minibatches(
    batch: TokenBatch, num_minibatches: int, rng: np.random.Generator
) -> list[TokenBatch]:
    """Cut the batch in random order into one part per optimizer step.

    Sizes differ by at most one row, and no row is repeated to fill the last part. With
    fewer rows than `num_minibatches` there are only as many parts as rows.

    Raises:
        SettingError: `num_minibatches` is below 1.
    """
    _check_steps(num_minibatches)
    parts = min(num_minibatches, len(batch))
    order = rng.permutation(len(batch))
    return [select(batch, rows) for rows in np.array_split(order, parts)] if parts else []


def group_minibatches(
    batch: TokenBatch, num_groups: int, num_minibatches: int, rng: np.random.Generator
) -> list[TokenBatch]:
    """Cut the groups in random order into one part per optimizer step.

    The numbers of groups differ by at most one, and with fewer groups than `num_minibatches`
    there are only as many parts as groups. Which groups are in a part depends on `num_groups`,
    `num_minibatches` and `rng` only. Learners that give the same get the same parts, each with
    the rows that it has of them; together these are whole groups.

    Args:
        batch: a learner's share of a batch; it may lack rows of a group, or whole groups.
        num_groups: the number of groups of the whole batch.
        num_minibatches: the number of optimizer steps, at least 1.
        rng: draws the order of the groups.

    Raises:
        SettingError: `num_minibatches` is below 1.
    """
    _check_steps(num_minibatches)
    parts = min(num_minibatches, num_groups)
    if not parts:
        return []
    part_of = np.empty(num_groups, np.int64)
    for number, groups in enumerate(np.array_split(rng.permutation(num_groups), parts)):
        part_of[groups] = number
    return [select(batch, part_of[batch.groups] == number) for number in range(parts)]


def _check_steps(num_minibatches: int) -> None:
    if num_minibatches < 1:
        raise SettingError(
            f"num_minibatches={num_minibatches}: at least 1 optimizer step per batch is needed",
            "num_minibatches",
        )


def split_for_ranks(batch: TokenBatch, world_size: int) -> list[TokenBatch]:
    """Cut a batch into a share for each of `world_size` learners, balanced by tokens.

    From the longest row to the shortest, each goes to the learner with the fewest tokens so
    far. Rows keep their order within a share. A share is empty only if there are fewer rows
    than learners; such a learner must still take part in every collective call.

    Raises:
        SettingError: `world_size` is below 1.
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
    """Choose the rows of each padded micro-batch.

    Rows are sorted by length, so that there is little padding, and a micro-batch takes rows
    as long as rows × longest ≤ `max_tokens`. The longest rows come first: if memory is too
    small, that shows at once. A row longer than the budget goes alone.

    Args:
        lengths: int64[B], tokens of each row (`batch.lengths`).
        max_tokens: the budget in tokens, padding included.

    Returns:
        Arrays of row numbers; each row is in exactly one.

    Raises:
        SettingError: `max_tokens` is below 1.
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

    The model maps `input_ids` to hidden states [B, L, H]. The state at position p predicts
    the token at p + 1, so completion token t of row i is predicted by the state at position
    prompt_lengths[i] + t − 1 (for t = 0, the end of the prompt). Only these states go through
    the lm_head:

        hidden.reshape(B * L, H)[predictors] -> [T, H], predicts targets [T]

    in the order of `TokenBatch.old_logprobs`, without prompt tokens and padding.

    Attributes:
        input_ids: int64[B, L].
        attention_mask: int64[B, L], 1 for tokens, 0 for padding. It is made from the lengths,
            so a padding id may also be an EOS id.
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
    """Lay out a (micro-)batch with padding. See `PaddedRows`.

    Raises:
        TrainingError: a completion follows an empty prompt, so nothing predicts its start.
    """
    check_prompts(batch)
    lengths = batch.lengths
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


def check_prompts(batch: TokenBatch) -> None:
    """Refuse a completion without a prompt.

    Raises:
        TrainingError: a completion follows an empty prompt, so nothing predicts its start.
    """
    orphans = np.flatnonzero((batch.prompt_lengths < 1) & (batch.completion_lengths > 0))
    if len(orphans):
        raise TrainingError(
            f"row {orphans[0]} has a completion but prompt_lengths=0, so no token predicts its "
            "first one; begin prompts with a BOS token or use a prompt_template"
        )


def idle_row(token_id: int) -> TokenBatch:
    """Return one row without weight: a prompt and a masked completion of one token each.

    A learner that has no rows left computes it where the others make a forward pass in which
    all must take part.
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
    """Return where the elements of `rows` are in an end-to-end array of rows of `lengths`."""
    starts = np.cumsum(lengths) - lengths
    return ragged_ranges(starts[rows], lengths[rows])


def ragged_ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """Return the ranges [start, start + length) end to end: (3, 9), (2, 1) -> 3, 4, 9."""
    offsets = np.cumsum(lengths) - lengths
    return np.repeat(starts - offsets, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)
