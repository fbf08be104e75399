"""Packing: every row once, within the budget, and each target sees exactly its own past."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, make_batch, rows_of, token_batches

from rllib_dapo.errors import SettingError, TrainingError
from rllib_dapo.model.batching import concatenate, pad_rows, select
from rllib_dapo.model.packed_layout import attention_buckets
from rllib_dapo.model.packing import distinct_prompts, pack, pack_rows, pack_shared

LENGTHS = st.lists(st.integers(0, 40), max_size=40).map(lambda x: np.array(x, np.int64))


def long_tailed(seed, count=1000):
    rng = np.random.default_rng(seed)
    return np.clip(rng.lognormal(np.log(100) - 0.5, 1.0, count), 1, 1000).astype(np.int64)


def first_fit_in_order(lengths, budget):
    """The number of bins if rows are taken as they come."""
    rooms = []
    for length in lengths:
        for b, room in enumerate(rooms):
            if room >= length:
                rooms[b] -= length
                break
        else:
            rooms.append(budget - length)
    return len(rooms)


@examples(150)
@given(LENGTHS, st.integers(1, 60))
def test_pack_holds_each_row_once_within_the_budget(lengths, budget):
    bins = pack(lengths, budget)
    assert sorted(int(row) for rows in bins for row in rows) == list(range(len(lengths)))
    assert all(rows.dtype == np.int64 for rows in bins)
    for rows in bins:
        assert lengths[rows].sum() <= budget or len(rows) == 1
    assert [lengths[rows].max() for rows in bins] == sorted(
        (lengths[rows].max() for rows in bins), reverse=True
    )


@examples(150)
@given(LENGTHS, st.integers(1, 60))
def test_pack_opens_a_bin_only_where_no_other_has_room(lengths, budget):
    """Best fit decreasing: rows come from long to short, and each to the least room."""
    bins = [rows.tolist() for rows in pack(lengths, budget)]
    for rows in bins:
        assert [lengths[row] for row in rows] == sorted((lengths[r] for r in rows), reverse=True)
    place = {row: number for number, rows in enumerate(bins) for row in rows}
    rooms = [budget] * len(bins)
    opened = 0
    for row in np.argsort(-lengths, kind="stable").tolist():
        number, size = place[row], lengths[row]
        others = [room for room in rooms[:opened] if room >= size]
        if number == opened:
            assert not others
            opened += 1
        else:
            assert rooms[number] == min(others)
        rooms[number] -= size
    # Any two bins hold more than one budget: they could not be one.
    sums = sorted(lengths[rows].sum() for rows in bins)
    assert len(sums) < 2 or sums[0] + sums[1] > budget


@pytest.mark.parametrize("seed", range(5))
def test_long_tailed_lengths_fill_their_bins(seed):
    """No theorem (first-fit can be lucky on a contrived order), but so it is in practice."""
    lengths = long_tailed(seed)
    bins = pack(lengths, 4096)
    least = int(np.ceil(lengths.sum() / 4096))
    assert len(bins) == least <= first_fit_in_order(lengths, 4096)


def test_short_rows_first_would_need_more_bins():
    lengths = np.array([4, 4, 6, 6])
    assert len(pack(lengths, 10)) == 2 < first_fit_in_order(lengths, 10)


def test_pack_puts_overlong_rows_first_and_alone():
    bins = pack(np.array([2, 50, 3, 0, 2, 61]), 6)
    assert [rows.tolist() for rows in bins] == [[5], [1], [2, 0, 3], [4]]


def shared_tokens(batch, rows, prompts):
    """Tokens of the flat row of `rows`, each prompt counted once."""
    kept = {int(prompts[row]): int(batch.prompt_lengths[row]) for row in rows}
    return sum(kept.values()) + sum(int(batch.completion_lengths[row]) for row in rows)


@st.composite
def grouped_batches(draw):
    """Batches in which several rows have one prompt, in mixed order."""
    prompts = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=4))
    completion = st.lists(st.integers(0, 9), max_size=8)
    rows = [(prompt, r) for prompt in prompts for r in draw(st.lists(completion, max_size=6))]
    return make_batch(draw(st.permutations(rows)))


@examples(150)
@given(grouped_batches(), st.integers(1, 40))
def test_pack_shared_holds_each_row_once_within_the_budget(batch, budget):
    prompts = distinct_prompts(batch)
    bins = pack_shared(batch.prompt_lengths, batch.completion_lengths, prompts, budget)
    assert sorted(int(row) for rows in bins for row in rows) == list(range(len(batch)))
    sizes = [shared_tokens(batch, rows, prompts) for rows in bins]
    for rows, size in zip(bins, sizes, strict=True):
        assert size <= budget or len(rows) == 1
        assert pack_rows(select(batch, rows), share_prompts=True).input_ids.shape == (1, size)
    assert sizes == sorted(sizes, reverse=True)


def pack_groups_of_16(prompt, budget):
    completions = long_tailed(0, 1024)
    prompts = np.arange(1024) // 16
    bins = pack_shared(np.full(1024, prompt), completions, prompts, budget)
    copies = sum(len(set(prompts[rows].tolist())) for rows in bins)
    return completions.sum() + copies * prompt, completions.sum() + 64 * prompt, len(bins)


@pytest.mark.parametrize("prompt", [20, 200, 600])
@pytest.mark.parametrize("budget", [4096, 16384])
def test_pack_shared_computes_little_more_than_each_prompt_once(prompt, budget):
    tokens, least, bins = pack_groups_of_16(prompt, budget)
    assert tokens <= 1.08 * least
    assert tokens / bins / budget >= 0.8


def test_a_group_is_split_only_where_that_pays():
    def bins(prompt, completions, budget):
        lengths = np.array(completions)
        rows = pack_shared(np.full(len(lengths), prompt), lengths, np.zeros_like(lengths), budget)
        return [r.tolist() for r in rows]

    assert bins(4, [1, 2, 3], 10) == [[2, 1, 0]]
    assert bins(4, [1, 2, 3], 9) == [[2, 1], [0]]
    assert bins(4, [9, 1, 1], 9) == [[0], [1, 2]]  # the overlong row alone
    # Two groups of 5 + 5 with 3 tokens of room: not for a completion of 1 after a prompt of 5.
    groups = np.array([0, 0, 1, 1])
    apart = pack_shared(np.full(4, 5), np.array([3, 2, 4, 1]), groups, 16)
    assert [sorted(r.tolist()) for r in apart] == [[0, 1], [2, 3]]
    joined = pack_shared(np.full(4, 1), np.array([3, 2, 8, 2]), groups, 15)
    assert [sorted(r.tolist()) for r in joined] == [[0, 2, 3], [1]]


def test_prompts_are_told_apart_by_their_tokens():
    batch = make_batch(
        [([1, 2], [3]), ([1], [2, 3]), ([1, 2], []), ([2, 1], [3])], groups=[0, 0, 1, 0]
    )
    assert distinct_prompts(batch).tolist() == [0, 1, 0, 2]


def test_packed_rows_of_the_documented_example():
    batch = make_batch([([1, 4], [5, 2]), ([1, 4], [6])])
    packed = pack_rows(batch, share_prompts=True)
    assert packed.input_ids.tolist() == [[1, 4, 5, 2, 6]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 3, 2]]
    assert packed.predictors.tolist() == [1, 2, 1]
    assert packed.targets.tolist() == [5, 2, 6]
    assert packed.lengths.tolist() == [4, 3]
    assert packed.gather.tolist() == [0, 1, 2, 3, 0, 1, 4]
    assert packed.scatter.tolist() == [0, 1, 2, 3, 6]


@examples(150)
@given(st.one_of(grouped_batches(), token_batches()), st.booleans())
def test_each_target_is_predicted_from_exactly_the_tokens_before_it(batch, share):
    packed = pack_rows(batch, share_prompts=share)
    flat, positions = packed.input_ids[0], packed.position_ids[0]
    count = len(flat)
    gather = np.arange(count) if packed.gather is None else packed.gather
    scatter = np.arange(count) if packed.scatter is None else packed.scatter
    assert gather[scatter].tolist() == list(range(count))  # every token is attended to
    assert packed.lengths.min(initial=1) > 0
    assert packed.lengths.sum() == len(gather)
    starts = np.repeat(np.cumsum(packed.lengths) - packed.lengths, packed.lengths)

    pasts, targets = [], []
    for prompt, completion, *_ in rows_of(batch):
        pasts += [list(prompt + completion[:t]) for t in range(len(completion))]
        targets += completion
    for predictor, past in zip(packed.predictors.tolist(), pasts, strict=True):
        slot = scatter[predictor]
        seen = gather[starts[slot] : slot + 1]
        assert flat[seen].tolist() == past
        assert positions[seen].tolist() == list(range(len(past)))
    assert packed.targets.tolist() == targets == pad_rows(batch, 0).targets.tolist()


@examples(60)
@given(grouped_batches())
def test_sharing_computes_each_prompt_once_and_is_left_out_where_there_is_nothing(batch):
    shared, apart = (pack_rows(batch, share_prompts=share) for share in (True, False))
    assert apart.input_ids[0].tolist() == batch.token_ids.tolist()
    assert apart.gather is None
    assert apart.scatter is None
    prompts = distinct_prompts(batch)
    assert shared.input_ids.size == shared_tokens(batch, range(len(batch)), prompts)
    assert (shared.gather is None) == (shared.lengths.sum() == shared.input_ids.size)


def test_a_batch_without_rows_can_be_packed():
    for share in (True, False):
        packed = pack_rows(concatenate([]), share_prompts=share)
        assert packed.input_ids.shape == packed.position_ids.shape == (1, 0)
        assert len(packed.targets) == len(packed.lengths) == 0
    none = np.zeros(0, np.int64)
    assert pack(none, 5) == pack_shared(none, none, none, 5) == []


@pytest.mark.parametrize("share", [True, False])
def test_empty_prompts(share):
    with pytest.raises(TrainingError, match=r"row 1 .*prompt_lengths=0"):
        pack_rows(make_batch([([1], [2]), ([], [3])]), share_prompts=share)
    harmless = pack_rows(make_batch([([], []), ([1], [3]), ([], [])]), share_prompts=share)
    assert harmless.targets.tolist() == [3]
    assert harmless.lengths.tolist() == [2]


@examples(150)
@given(LENGTHS)
def test_attention_buckets_hold_each_sequence_once_with_little_padding(lengths):
    buckets = attention_buckets(lengths)
    assert sorted(int(i) for rows in buckets for i in rows) == list(range(len(lengths)))
    for rows in buckets:
        padding = len(rows) * lengths[rows].max() - lengths[rows].sum()
        assert padding <= max(0.05 * lengths[rows].sum(), 32)


def test_attention_buckets_put_a_very_long_sequence_alone_and_equal_ones_together():
    buckets = attention_buckets(np.array([10, 900, 10, 12]))
    assert [rows.tolist() for rows in buckets] == [[1], [3, 0, 2]]


@pytest.mark.parametrize(
    "call",
    [
        lambda none: pack(none, 0),
        lambda none: pack_shared(none, none, none, 0),
    ],
)
def test_a_budget_of_nothing_is_refused(call):
    with pytest.raises(SettingError, match="max_tokens_per_microbatch=0") as caught:
        call(np.zeros(0, np.int64))
    assert caught.value.setting == "max_tokens_per_microbatch"
