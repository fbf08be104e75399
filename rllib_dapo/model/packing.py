"""Micro-batches without padding: sequences end to end in one flat row of N tokens.

    lengths --pack--> bins of rows --select--> TokenBatch --pack_rows--> PackedRows

Embeddings, projections and MLPs treat each token by itself, so they need no padding. Only
attention has to know where sequences end (`rllib_dapo.model.packed_attention`).

Completions of the same prompt can share it. By causality the hidden states of a prompt do not
depend on what follows, so one copy serves all its completions:

    [prompt, completion 1, prompt, completion 2]  ->  [prompt, completion 1, completion 2]
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from rllib_dapo.model.batching import check_prompts, ragged_indices, ragged_ranges
from rllib_dapo.settings.checks import check_value
from rllib_dapo.types import IntArray, TokenBatch

# -- Which rows go through the model together -------------------------------------------------


def pack(lengths: IntArray, max_tokens: int) -> list[IntArray]:
    """Choose the rows of each micro-batch by best-fit decreasing bin packing.

    From the longest row to the shortest, each goes to the fullest bin that still has room
    for it, or into a new bin. Bins keep the order in which they were opened, so the longest
    rows come first: if memory is too small, that shows at once. A row longer than the budget
    goes alone. Equal lengths keep their order; nothing is random.

    Args:
        lengths: int64[B], tokens of each row.
        max_tokens: the budget of a bin, in tokens.

    Returns:
        Arrays of row numbers (int64); each row is in exactly one.

    Raises:
        SettingError: `max_tokens` is below 1.
    """
    bins, sizes = _Bins(max_tokens), lengths.tolist()
    for row in np.argsort(-lengths, kind="stable").tolist():
        number = bins.fullest_with_room_for(sizes[row])
        bins.add(bins.open() if number is None else number, [row], sizes[row])
    return [np.array(rows, np.int64) for rows in bins.rows]


def distinct_prompts(batch: TokenBatch) -> IntArray:
    """Number the prompts 0, 1, … as they appear; rows with the same tokens get the same number.

    Tokens are compared, not `batch.groups`: two problems with the same text then share their
    prompt, and a group whose prompts differ (none should) does no harm.

    Returns:
        int64[B].
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
    """Do what `pack` does for rows that share prompts: a bin holds each of its prompts once.

        tokens of a bin = Σ_{distinct prompts} |p| + Σ_{rows} |o|  ≤  max_tokens

    The rows with one prompt are a group. From the largest group to the smallest, the rest of
    the group goes whole to the fullest bin with room for it. If no bin has room, the group is
    split (`_bin_for_part`).

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
    bins, sizes = _Bins(max_tokens), completion_lengths.tolist()
    for prompt, rows in _rows_by_prompt(prompt_lengths, completion_lengths, prompts):
        rest = rows
        while rest:
            taken = rest
            number = bins.fullest_with_room_for(prompt + sum(sizes[row] for row in rest))
            if number is None:
                number, taken = _bin_for_part(bins, prompt, rest, sizes)
            bins.add(number, taken, prompt + sum(sizes[row] for row in taken))
            gone = set(taken)
            rest = [row for row in rest if row not in gone]
    fullest_first = sorted(range(len(bins.rows)), key=bins.room.__getitem__)
    return [np.array(bins.rows[number], np.int64) for number in fullest_first]


class _Bins:
    """Bins of rows with a budget of tokens each, searchable by the room left in them.

    Attributes:
        budget: tokens that a bin should hold at most.
        rows: row numbers of each bin.
        room: tokens left in each bin; negative where one row exceeds the budget.
    """

    def __init__(self, budget: int) -> None:
        check_value("max_tokens_per_microbatch", budget)
        self.budget = budget
        self.rows: list[list[int]] = []
        self.room: list[int] = []
        self._by_room: list[tuple[int, int]] = []  # (room, bin), ascending; no overfull bins

    def open(self) -> int:
        """Add an empty bin and return its number."""
        number = len(self.rows)
        self.rows.append([])
        self.room.append(self.budget)
        insort(self._by_room, (self.budget, number))
        return number

    def add(self, number: int, rows: list[int], tokens: int) -> None:
        """Put rows with this number of tokens together into a bin."""
        del self._by_room[bisect_left(self._by_room, (self.room[number], number))]
        self.rows[number] += rows
        self.room[number] -= tokens
        if self.room[number] >= 0:
            insort(self._by_room, (self.room[number], number))

    def fullest_with_room_for(self, tokens: int) -> int | None:
        """Return the bin with the least room that is still enough, or None."""
        at = bisect_left(self._by_room, (tokens,))
        return self._by_room[at][1] if at < len(self._by_room) else None

    def emptiest(self) -> int | None:
        """Return the bin with the most room, or None if there is no bin."""
        return self._by_room[-1][1] if self._by_room else None


def _bin_for_part(
    bins: _Bins, prompt: int, rows: list[int], sizes: list[int]
) -> tuple[int, list[int]]:
    """Choose a bin, and which of a group's rows go into it, where no bin has room for all.

    As many completions as fit, longest first, go to the emptiest bin, if their tokens make up
    for computing the prompt once more. If not, they go to a new bin.

    Args:
        bins: the bins so far.
        prompt: tokens of the group's prompt.
        rows: the rest of the group, from the longest completion on.
        sizes: tokens of each completion, by row number.
    """
    emptiest = bins.emptiest()
    if emptiest is not None:
        taken = _fitting(rows, sizes, bins.room[emptiest] - prompt)
        if taken and sum(sizes[row] for row in taken) >= prompt:
            return emptiest, taken
    return bins.open(), _fitting(rows, sizes, bins.budget - prompt) or rows[:1]


def _rows_by_prompt(
    prompt_lengths: IntArray, completion_lengths: IntArray, prompts: IntArray
) -> list[tuple[int, list[int]]]:
    """Return (prompt length, rows from the longest completion on), most tokens first."""
    order = np.lexsort((-completion_lengths, prompts))  # by prompt, then by completion
    cuts = np.flatnonzero(np.diff(prompts[order])) + 1
    groups = [
        (int(prompt_lengths[rows[0]]), rows.tolist()) for rows in np.split(order, cuts) if len(rows)
    ]
    groups.sort(key=lambda group: -(group[0] + int(completion_lengths[group[1]].sum())))
    return groups


def _fitting(rows: list[int], sizes: list[int], room: int) -> list[int]:
    """Return the rows that fit into `room` together; each is taken if it still fits."""
    taken = []
    for row in rows:
        if sizes[row] <= room:
            room -= sizes[row]
            taken.append(row)
    return taken


# -- How the rows of a micro-batch are laid out -----------------------------------------------


@dataclass(frozen=True, slots=True)
class PackedRows:
    """B sequences as one flat row of N tokens, and the S sequences that attention sees.

    The model maps `input_ids` to hidden states [1, N, H]. As in `PaddedRows`,

        hidden.reshape(N, H)[predictors] -> [T, H], predicts targets [T]

    in the order of `TokenBatch.old_logprobs`. Where prompts are shared, attention runs on
    copies: E tokens, each completion behind its own copy of the prompt,

        attended = attention(q[gather], k[gather], v[gather])[scatter],

    and the results of the other copies, which are equal, are dropped. Their gradients add up.

    Attributes:
        input_ids: int64[1, N].
        position_ids: int64[1, N], from 0 in every sequence; a completion continues the
            numbers of its prompt.
        predictors: int64[T], the position in the flat row of the state that predicts each
            target. The end of a shared prompt occurs several times.
        targets: int64[T], completion token ids of all rows, end to end.
        lengths: int64[S], tokens of the sequences as attention sees them, end to end;
            none is 0. Σ lengths = E, or N if nothing is shared.
        gather: int64[E], the position in the flat row of each token that attention sees, or
            None if no prompt is shared (the identity).
        scatter: int64[N], the inverse: where attention's result for each position of the
            flat row is. None where `gather` is None.

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
        TrainingError: a completion follows an empty prompt, so nothing predicts its start.
    """
    check_prompts(batch)
    prompts = distinct_prompts(batch) if share_prompts else np.arange(len(batch))
    order = np.argsort(prompts, kind="stable")  # Rows with the same prompt follow one another.
    places, size = _places(batch, prompts, order)
    input_ids, position_ids = np.empty(size, np.int64), np.empty(size, np.int64)
    input_ids[places] = batch.token_ids
    position_ids[places] = ragged_ranges(np.zeros_like(order), batch.lengths)

    completion_starts = np.cumsum(batch.lengths) - batch.completion_lengths
    before_targets = ragged_ranges(completion_starts - 1, batch.completion_lengths)
    lengths, gather, scatter = _attention_sequences(batch, prompts, order, places, size)
    return PackedRows(
        input_ids=input_ids[None],
        position_ids=position_ids[None],
        predictors=places[before_targets],
        targets=batch.token_ids[before_targets + 1],
        lengths=lengths,
        gather=gather,
        scatter=scatter,
    )


def _places(batch: TokenBatch, prompts: IntArray, order: IntArray) -> tuple[IntArray, int]:
    """Return where each token of `batch.token_ids` is in the flat row, and the row's length.

    Rows lie in the given order. The first row of a prompt brings its tokens along, and the
    prompts of all other rows are at the same place.
    """
    lengths = np.stack([batch.prompt_lengths, batch.completion_lengths], axis=1)
    brings_prompt = np.diff(prompts[order], prepend=-1) != 0
    sizes = lengths[order]
    sizes[~brings_prompt, 0] = 0
    starts = np.cumsum(sizes).reshape(sizes.shape) - sizes  # [B, 2], of prompt and completion
    # The prompt of every row is where the row that brings it along has it.
    bringer = np.flatnonzero(brings_prompt)[np.cumsum(brings_prompt) - 1]
    starts[:, 0] = starts[bringer, 0]
    starts_by_row = np.empty_like(starts)
    starts_by_row[order] = starts
    return ragged_ranges(starts_by_row.ravel(), lengths.ravel()), int(sizes.sum())


def _attention_sequences(
    batch: TokenBatch, prompts: IntArray, order: IntArray, places: IntArray, size: int
) -> tuple[IntArray, IntArray | None, IntArray | None]:
    """Return `lengths`, `gather` and `scatter` of `PackedRows`."""
    # A row with an empty completion is a sequence only where no other row has its prompt.
    is_sequence = batch.completion_lengths > 0
    lonely = ~np.isin(prompts, prompts[is_sequence])
    is_sequence[order] |= (np.diff(prompts[order], prepend=-1) != 0) & lonely[order]
    rows = order[is_sequence[order] & (batch.lengths[order] > 0)]
    gather = places[ragged_indices(batch.lengths, rows)]
    if len(gather) == size:  # Nothing is shared.
        return batch.lengths[rows], None, None
    scatter = np.empty(size, np.int64)
    # Of several copies the first is read; it is written last.
    scatter[gather[::-1]] = np.arange(len(gather))[::-1]
    return batch.lengths[rows], gather, scatter
