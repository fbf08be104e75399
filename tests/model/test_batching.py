"""Cutting batches: every row exactly once, whichever way it is cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import VOCABULARY, examples, make_batch, rows_of, token_batches

from rllib_dapo.errors import SettingError, TrainingError
from rllib_dapo.model.batching import (
    concatenate,
    microbatches,
    minibatches,
    pad_rows,
    select,
    split_for_ranks,
)

EXAMPLE = make_batch(
    [([1, 4], [5, 2]), ([1, 4], [6]), ([7], [])],
    old_logprobs=[[-0.1, -0.2], [-0.9], []],
    advantages=[1.0, -1.0, 0.5],
    loss_mask=[True, False, True],
    groups=[0, 0, 1],
)


def same_rows(parts, batch):
    """True if the parts hold the rows of the batch, each exactly once."""
    return sorted(row for part in parts for row in rows_of(part)) == sorted(rows_of(batch))


@examples(60)
@given(token_batches(), st.data())
def test_select_takes_rows_whole_and_in_the_order_asked_for(batch, data):
    rows = data.draw(st.lists(st.sampled_from(range(len(batch))), max_size=6)) if len(batch) else []
    every = rows_of(batch)
    assert rows_of(select(batch, rows)) == [every[i] for i in rows]
    assert rows_of(select(batch, batch.loss_mask)) == [row for row in every if row[4]]


@examples(60)
@given(st.lists(token_batches(max_rows=3), max_size=4))
def test_concatenate_keeps_rows_and_dtypes(batches):
    whole = concatenate(batches)
    assert rows_of(whole) == [row for batch in batches for row in rows_of(batch)]
    assert whole.token_ids.dtype == whole.groups.dtype == np.int64
    assert whole.old_logprobs.dtype == whole.advantages.dtype == np.float32
    assert whole.loss_mask.dtype == np.bool_


def test_concatenate_can_keep_the_groups_of_different_batches_apart():
    assert concatenate([EXAMPLE, EXAMPLE]).groups.tolist() == [0, 0, 1, 0, 0, 1]
    empty = concatenate([])
    apart = concatenate([EXAMPLE, empty, EXAMPLE], distinct_groups=True)
    assert apart.groups.tolist() == [0, 0, 1, 2, 2, 3]


@examples(80)
@given(token_batches(), st.integers(1, 9), st.integers(0, 99))
def test_minibatches_hold_each_row_once_and_differ_by_one_row_at_most(batch, count, seed):
    parts = minibatches(batch, count, np.random.default_rng(seed))
    assert same_rows(parts, batch)
    assert len(parts) == min(count, len(batch))
    sizes = [len(part) for part in parts]
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_minibatches_are_drawn_from_the_generator_alone():
    batch = make_batch([([1], [i]) for i in range(10)])
    first, again, other = (
        [rows_of(part) for part in minibatches(batch, 3, np.random.default_rng(seed))]
        for seed in (7, 7, 8)
    )
    assert first == again != other


@examples(80)
@given(token_batches(), st.integers(1, 40))
def test_microbatches_hold_each_row_once_within_the_budget(batch, budget):
    lengths = batch.lengths
    parts = microbatches(lengths, budget)
    assert sorted(int(row) for part in parts for row in part) == list(range(len(batch)))
    for part in parts:
        assert len(part) * lengths[part].max() <= budget or len(part) == 1


def test_microbatches_sort_by_length_and_put_an_overlong_row_alone():
    parts = microbatches(np.array([2, 50, 3, 2, 3]), 6)
    assert [part.tolist() for part in parts] == [[1], [2, 4], [0, 3]]


@examples(80)
@given(token_batches(), st.integers(1, 9))
def test_ranks_get_each_row_once_and_are_empty_only_for_want_of_rows(batch, world_size):
    shares = split_for_ranks(batch, world_size)
    assert same_rows(shares, batch)
    assert len(shares) == world_size
    assert sum(len(share) == 0 for share in shares) == max(0, world_size - len(batch))


@examples(80)
@given(token_batches(min_rows=1), st.integers(1, 4))
def test_ranks_differ_by_no_more_than_the_longest_row(batch, world_size):
    tokens = [int(share.lengths.sum()) for share in split_for_ranks(batch, world_size)]
    assert max(tokens) - min(tokens) <= batch.lengths.max()


def test_ranks_are_balanced_by_tokens_not_by_rows_and_keep_the_order_of_rows():
    shares = split_for_ranks(make_batch([([1], [1] * n) for n in (2, 3, 7)]), 2)
    assert [share.lengths.tolist() for share in shares] == [[8], [3, 4]]


def test_padded_rows_of_the_documented_example():
    padded = pad_rows(select(EXAMPLE, [0, 1]), pad_id=0)
    assert padded.input_ids.tolist() == [[1, 4, 5, 2], [1, 4, 6, 0]]
    assert padded.attention_mask.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert padded.position_ids.tolist() == [[0, 1, 2, 3]] * 2
    assert padded.predictors.tolist() == [1, 2, 5]
    assert padded.targets.tolist() == [5, 2, 6]


@examples(80)
@given(token_batches(), st.integers(0, VOCABULARY - 1))
def test_predictors_point_at_the_token_before_each_completion_token(batch, pad_id):
    """Also where the padding id occurs as a token (pad == EOS)."""
    padded = pad_rows(batch, pad_id)
    expected_states, expected_targets = [], []
    for i, (prompt, completion, *_) in enumerate(rows_of(batch)):
        ids = prompt + completion
        row = padded.input_ids[i].tolist()
        assert row == [*ids, *[pad_id] * (len(row) - len(ids))]
        assert padded.attention_mask[i].tolist() == [int(p < len(ids)) for p in range(len(row))]
        for t, token in enumerate(completion):
            expected_states.append((i, len(prompt) + t - 1))
            expected_targets.append(token)
    width = padded.input_ids.shape[1]
    assert padded.predictors.tolist() == [i * width + p for i, p in expected_states]
    assert padded.targets.tolist() == expected_targets
    assert len(padded.targets) == len(batch.old_logprobs)


def test_a_batch_without_rows_can_be_padded():
    padded = pad_rows(concatenate([]), 0)
    assert padded.input_ids.shape == (0, 0)
    assert len(padded.targets) == 0


def test_a_completion_to_an_empty_prompt_is_refused():
    with pytest.raises(TrainingError, match=r"row 1 .*prompt_lengths=0"):
        pad_rows(make_batch([([1], [2]), ([], [3])]), 0)


def test_an_empty_prompt_without_a_completion_does_no_harm():
    assert pad_rows(make_batch([([], []), ([1], [3])]), 0).targets.tolist() == [3]


@pytest.mark.parametrize(
    ("call", "setting"),
    [
        (lambda: minibatches(EXAMPLE, 0, np.random.default_rng()), "num_minibatches"),
        (lambda: split_for_ranks(EXAMPLE, 0), "num_learners"),
        (lambda: microbatches(EXAMPLE.lengths, 0), "max_tokens_per_microbatch"),
    ],
)
def test_a_cut_into_nothing_is_refused(call, setting):
    with pytest.raises(SettingError, match=f"{setting}=0"):
        call()
