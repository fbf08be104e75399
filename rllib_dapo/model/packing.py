"""Micro-batches without padding: sequences end to end in one flat row of N tokens.

    lengths --pack--> bins of rows --select--> TokenBatch --pack_rows--> PackedRows

Embeddings, projections and MLPs treat tokens one by one, so they need no padding. Only
attention has to know where sequences end (`rllib_dapo.model.packed_attention`).

Answers to the same prompt can share it. By causality the hidden states of a prompt do not
depend on what follows, so one copy serves all its answers:

    [prompt, answer 1, prompt, answer 2]  ->  [prompt, answer 1, answer 2]
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from rllib_dapo.errors import TrainingError
from rllib_dapo.model.batching import ragged_ranges
from rllib_dapo.settings.checks import check_value
from rllib_dapo.types import IntArray, TokenBatch


def pack(lengths: IntArray, max_tokens: int) -> list[IntArray]:
    """Rows that go through the model together, by best-fit decreasing bin packing.

    From the longest row to the shortest, each goes to the fullest bin that still has room
    for it, or opens a new one. Bins keep the order they were opened in, so the longest
    rows come first: what does not fit into memory fails at once. A row longer than the
    budget goes alone. Equal lengths keep their order; nothing is random.

    Args:
        lengths: int64[B], tokens of each row.
        max_tokens: the budget of a bin, in tokens.

    Returns:
        Arrays of row numbers (int64); each row is in exactly one.

    Raises:
        SettingError: `max_tokens` is below 1.
    """
    check_value("max_tokens_per_microbatch", max_tokens)
    sizes = lengths.tolist()
    bins: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (tokens left, bin), ascending
    for row in np.argsort(-lengths, kind="stable").tolist():
        at = bisect_left(rooms, (sizes[row],))
        if at < len(rooms):
            room, number = rooms.pop(at)
        else:
            room, number = max_tokens, len(bins)
            bins.append([])
        bins[number].append(row)
        if room >= sizes[row]:  # an overlong row leaves no room
            insort(rooms, (room - sizes[row], number))
    return [np.array(rows, np.int64) for rows in bins]


def distinct_prompts(batch: TokenBatch) -> IntArray:
    """int64[B], the same number for rows with the same prompt tokens: 0, 1, … as they appear.

    Tokens are compared, not `batch.groups`: two problems with one text share their prompt,
    and a group whose prompts differ (none should) does no harm.
    """
    starts = np.cumsum(batch.lengths) - batch.lengths
    ends = starts + batch.prompt_lengths
    numbers: dict[bytes, int] = {}
    return np.array(
        [
            numbers.setdefault(batch.token_ids[start:end].tobytes(), len(numbers))
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ],
        np.int64,
    )


def pack_shared(
    prompt_lengths: IntArray, completion_lengths: IntArray, prompts: IntArray, max_tokens: int
) -> list[IntArray]:
    """`pack` for rows that share prompts: a bin holds each of its prompts once.

        tokens of a bin = Σ_{distinct prompts} |p| + Σ_{rows} |o|  ≤  max_tokens

    From the largest group of rows with one prompt to the smallest, what is left of the
    group goes whole to the fullest bin with room for it. If there is none, the group is
    split: as many answers as fit, longest first, go to the emptiest bin if their tokens
    make up for computing the prompt once more, and to a new bin if not.

    Args:
        prompt_lengths: int64[B], tokens.
        completion_lengths: int64[B], tokens.
        prompts: int64[B], equal for rows with the same prompt (`distinct_prompts`).
        max_tokens: the budget of a bin, in tokens of the flat row.

    Returns:
        Arrays of row numbers (int64), the bins with the most tokens first; each row is in
        exactly one. A row longer than the budget goes alone.

    Raises:
        SettingError: `max_tokens` is below 1.
    """
    check_value("max_tokens_per_microbatch", max_tokens)
    completions = completion_lengths.tolist()
    bins: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (tokens left, bin), ascending
    left_over: list[int] = []  # of each bin
    for prompt, rows in _groups(prompt_lengths, completion_lengths, prompts):
        left = rows
        while left:
            at = bisect_left(rooms, (prompt + sum(completions[row] for row in left),))
            taken = left
            if at == len(rooms):  # nowhere as a whole
                at -= 1
                taken = _fitting(left, completions, rooms[at][0] - prompt) if rooms else []
                if not taken or sum(completions[row] for row in taken) < prompt:
                    at = len(rooms)
                    taken = _fitting(left, completions, max_tokens - prompt) or left[:1]
                    rooms.append((max_tokens, len(bins)))
                    bins.append([])
                    left_over.append(max_tokens)
            room, number = rooms.pop(at)
            room -= prompt + sum(completions[row] for row in taken)
            bins[number] += taken
            left_over[number] = room
            if room >= 0:
                insort(rooms, (room, number))
            gone = set(taken)
            left = [row for row in left if row not in gone]
    fullest_first = sorted(range(len(bins)), key=left_over.__getitem__)
    return [np.array(bins[number], np.int64) for number in fullest_first]


def _groups(
    prompt_lengths: IntArray, completion_lengths: IntArray, prompts: IntArray
) -> list[tuple[int, list[int]]]:
    """(prompt length, rows from the longest completion on) of each prompt, most tokens first."""
    order = np.lexsort((-completion_lengths, prompts))  # by prompt, then by completion
    cuts = np.flatnonzero(np.diff(prompts[order])) + 1
    groups = [
        (int(prompt_lengths[rows[0]]), rows.tolist()) for rows in np.split(order, cuts) if len(rows)
    ]
    groups.sort(key=lambda group: -(group[0] + int(completion_lengths[group[1]].sum())))
    return groups


def _fitting(rows: list[int], sizes: list[int], room: int) -> list[int]:
    """Those of `rows` that fit into `room` together, each taken if it still fits."""
    taken = []
    for row in rows:
        if sizes[row] <= room:
            room -= sizes[row]
            taken.append(row)
    return taken


@dataclass(frozen=True, slots=True)
class PackedRows:
    """B sequences as one flat row of N tokens, and the S sequences that attention sees.

    The model maps `input_ids` to hidden states [1, N, H]. As in `PaddedRows`,

        hidden.reshape(N, H)[predictors] -> [T, H], predicts targets [T]

    in the order of `TokenBatch.old_logprobs`. Where prompts are shared, attention runs on
    copies: E tokens, each answer behind its own copy of the prompt,

        attended = attention(q[gather], k[gather], v[gather])[scatter],

    and the other copies' results, being equal, are dropped. Their gradients add up.

    Attributes:
        input_ids: int64[1, N].
        position_ids: int64[1, N], from 0 in every sequence; an answer goes on from its
            prompt.
        predictors: int64[T], position in the flat row of the state that predicts each
            target. The end of a shared prompt occurs several times.
        targets: int64[T], completion token ids of all rows, end to end.
        lengths: int64[S], tokens of the sequences as attention sees them, end to end;
            none is 0. Σ lengths = E, or N if nothing is shared.
        gather: int64[E], position in the flat row of each token that attention sees, or
            None if no prompt is shared (the identity).
        scatter: int64[N], the inverse: where attention's result for each position of the
            flat row is; None with `gather`.

    Example: rows [1,4 | 5,2] and [1,4 | 6] (prompt | completion), with a shared prompt:
        input_ids [[1,4,5,2,6]], position_ids [[0,1,2,3,2]], predictors [1,2, 1],
        targets [5,2, 6], lengths [4,3], gather [0,1,2,3, 0,1,4], scatter [0,1,2,3,6].
    """

    input_ids: IntArray
    position_ids: IntArray
    predictors: IntArray
    targets: IntArray
    lengths: IntArray
    gather: IntArray | None
    scatter: IntArray | None


def pack_rows(batch: TokenBatch, *, share_prompts: bool) -> PackedRows:
    """Lay out a (micro-)batch end to end. See `PackedRows`.

    Args:
        batch: any number of rows.
        share_prompts: True computes equal prompts once, False once per row.

    Raises:
        TrainingError: a completion follows an empty prompt; nothing predicts its start.
    """
    prompt_lengths, completion_lengths = batch.prompt_lengths, batch.completion_lengths
    orphans = np.flatnonzero((prompt_lengths < 1) & (completion_lengths > 0))
    if len(orphans):
        raise TrainingError(
            f"row {orphans[0]} has a completion but prompt_lengths=0, so no token predicts its "
            "first one; begin prompts with a BOS token or use a prompt_template"
        )
    count = len(batch)
    prompts = distinct_prompts(batch) if share_prompts else np.arange(count)
    order = np.argsort(prompts, kind="stable")  # rows as they lie in the flat row
    opens = np.diff(prompts[order], prepend=-1) != 0  # the first row of each prompt

    # The pieces of the flat row: of each row in `order` its prompt, if it opens one, and
    # its answer.
    pieces = np.stack([prompt_lengths[order] * opens, completion_lengths[order]], axis=1)
    ends = np.cumsum(pieces).reshape(count, 2)
    prompt_at, answer_at = np.empty(count, np.int64), np.empty(count, np.int64)
    openers = np.flatnonzero(opens)[np.cumsum(opens) - 1]  # of the prompt of each row
    prompt_at[order] = (ends - pieces)[openers, 0]
    answer_at[order] = (ends - pieces)[:, 1]

    row_at = np.cumsum(batch.lengths) - batch.lengths
    sources = np.stack([row_at[order], (row_at + prompt_lengths)[order]], axis=1)
    firsts = np.stack([np.zeros_like(order), prompt_lengths[order]], axis=1)
    input_ids = batch.token_ids[ragged_ranges(sources.ravel(), pieces.ravel())]

    predictors = ragged_ranges(answer_at - 1, completion_lengths)
    answered = completion_lengths > 0
    first_targets = (np.cumsum(completion_lengths) - completion_lengths)[answered]
    predictors[first_targets] = (prompt_at + prompt_lengths - 1)[answered]

    lengths, gather, scatter = _attention_sequences(
        order, opens, np.stack([prompt_at, answer_at], 1), prompt_lengths, completion_lengths
    )
    return PackedRows(
        input_ids=input_ids[None],
        position_ids=ragged_ranges(firsts.ravel(), pieces.ravel())[None],
        predictors=predictors,
        targets=batch.token_ids[ragged_ranges(row_at + prompt_lengths, completion_lengths)],
        lengths=lengths,
        gather=gather,
        scatter=scatter,
    )


def _attention_sequences(
    order: IntArray,
    opens: np.ndarray[tuple[int], np.dtype[np.bool_]],
    starts: IntArray,
    prompt_lengths: IntArray,
    completion_lengths: IntArray,
) -> tuple[IntArray, IntArray | None, IntArray | None]:
    """`lengths`, `gather` and `scatter` of `PackedRows`; `starts` are [B, 2] in the flat row."""
    # A row without an answer adds nothing to a prompt that another row brings along.
    group = np.cumsum(opens)
    answered = np.isin(group, group[completion_lengths[order] > 0])
    rows = order[(completion_lengths[order] > 0) | (opens & ~answered)]
    pieces = np.stack([prompt_lengths[rows], completion_lengths[rows]], axis=1)
    lengths = pieces.sum(axis=1)
    gather = ragged_ranges(starts[rows].ravel(), pieces.ravel())
    lengths = lengths[lengths > 0]
    total = int((prompt_lengths[order] * opens).sum() + completion_lengths.sum())
    if len(gather) == total:
        return lengths, None, None
    scatter = np.empty(total, np.int64)
    scatter[gather[::-1]] = np.arange(len(gather))[::-1]  # the first copy comes last and stays
    return lengths, gather, scatter
