"""The loss of a minibatch: its value, and what must not change its gradient."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from split_loss import Policy, loss_and_gradient, reference_loss
from strategies import VOCABULARY, examples, make_batch, token_batches

from rllib_dapo.model.batching import concatenate, pad_rows, select
from rllib_dapo.settings.choices import Aggregation, RatioLevel

torch.set_num_threads(1)
AGGREGATIONS = get_args(Aggregation)

every_aggregation = pytest.mark.parametrize("aggregation", AGGREGATIONS)
every_loss = [every_aggregation, pytest.mark.parametrize("level", get_args(RatioLevel))]


def for_every_loss(test):
    """Run a test for all aggregations with both levels of the ratio."""
    for mark in every_loss:
        test = mark(test)
    return test


@st.composite
def batches(draw, min_rows=0):
    """Uneven batches with masked and empty completions, in groups; single tokens are masked
    too, and some of these have no old log-probability.
    """
    batch = draw(token_batches(min_rows=min_rows))
    size = len(batch.old_logprobs)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    masked = rng.random(size) < draw(st.sampled_from([0.0, 0.3]))
    weights = np.where(masked, 0.0, rng.uniform(0.5, 2.0, size)).astype(np.float32)
    old = np.where(masked & (rng.random(size) < 0.5), np.nan, batch.old_logprobs)
    return replace(batch, importance_weights=weights, old_logprobs=old.astype(np.float32))


def assert_same(a, b, tolerance=1e-12):
    assert a[0] == pytest.approx(b[0], abs=tolerance)
    torch.testing.assert_close(a[1], b[1], rtol=tolerance, atol=tolerance)


# -- Its value ------------------------------------------------------------------------------


@for_every_loss
@examples(40)
@given(batch=batches())
def test_loss_equals_loops_over_groups_sequences_and_tokens(batch, aggregation, level):
    logprobs = Policy().logprobs(pad_rows(batch, 0)).tolist()
    expected = reference_loss(batch, logprobs, aggregation, level)
    assert loss_and_gradient(batch, aggregation, level)[0] == pytest.approx(expected, abs=1e-12)


@every_aggregation
def test_the_reference_is_not_the_same_for_all(aggregation):
    """Uneven lengths in uneven groups: no two aggregations agree by chance."""
    batch = mixed_batch()
    others = [a for a in AGGREGATIONS if a != aggregation]
    own = loss_and_gradient(batch, aggregation)[0]
    assert all(abs(loss_and_gradient(batch, other)[0] - own) > 1e-3 for other in others)


def test_the_means_agree_on_equal_lengths():
    equal = make_batch([([1], [2, 3]), ([4], [5, 6])], advantages=[1.0, -1.0])
    for aggregation in ("sequence_mean", "group_token_mean"):
        assert_same(loss_and_gradient(equal, aggregation), loss_and_gradient(equal))


@pytest.mark.parametrize("level", get_args(RatioLevel))
def test_at_the_sampling_policy_the_loss_is_the_negative_mean_advantage(level):
    """ratio = 1 everywhere, so only the advantages are left."""
    batch = make_batch([([1], [2]), ([4], [5, 6, 7])], advantages=[1.0, -0.5])
    old = Policy().logprobs(pad_rows(batch, 0)).detach().numpy().astype(np.float32)
    loss, _ = loss_and_gradient(replace(batch, old_logprobs=old), level=level)
    assert loss == pytest.approx(-(1.0 * 1 - 0.5 * 3) / 4, abs=1e-6)


# -- What must not change it ------------------------------------------------------------------

splits = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=7, max_size=7)


@for_every_loss
@examples(40)
@given(batch=batches(min_rows=1), split=splits)
def test_any_split_in_microbatches_and_learners_gives_the_same_gradient(
    batch, split, aggregation, level
):
    """Groups cut apart, uneven learners, and parts with nothing kept among them."""
    whole = loss_and_gradient(batch, aggregation, level)
    assert torch.isfinite(whole[1]).all()
    parts = loss_and_gradient(batch, aggregation, level, split=split[: len(batch)])
    assert_same(parts, whole)


@for_every_loss
@examples(20)
@given(batch=batches(min_rows=1), random=st.randoms(use_true_random=False))
def test_order_of_the_rows_changes_nothing(batch, random, aggregation, level):
    order = list(range(len(batch)))
    random.shuffle(order)
    shuffled = loss_and_gradient(select(batch, order), aggregation, level)
    assert_same(shuffled, loss_and_gradient(batch, aggregation, level))


@for_every_loss
@examples(20)
@given(
    batch=batches(min_rows=1),
    pad_id=st.integers(0, VOCABULARY - 1),
    extra=st.integers(1, 9),
)
def test_padding_changes_nothing_whatever_its_id_and_however_much(
    batch, pad_id, extra, aggregation, level
):
    """An EOS id as padding id too: real EOS tokens carry loss, padding never does."""
    plain = loss_and_gradient(batch, aggregation, level)
    assert_same(loss_and_gradient(batch, aggregation, level, pad_id=pad_id), plain)
    # A long masked row widens every other row's padding.
    wide = concatenate([batch, make_batch([([1], [2] * (10 + extra))], loss_mask=[False])])
    assert_same(loss_and_gradient(wide, aggregation, level, pad_id=pad_id), plain)


def test_the_closing_eos_carries_loss_also_as_padding_id():
    eos = 2
    batch = make_batch([([1, 4], [5, eos]), ([1], [eos]), ([1, 3, 3], [4, 4, eos])])
    assert pad_rows(batch, eos).targets.tolist().count(eos) == 3
    without = make_batch([([1, 4], [5]), ([1], []), ([1, 3, 3], [4, 4])])
    assert loss_and_gradient(batch, pad_id=eos)[0] != loss_and_gradient(without, pad_id=eos)[0]


@for_every_loss
@examples(20)
@given(batch=batches(min_rows=1))
def test_a_masked_completion_counts_as_if_it_had_never_been_sampled(batch, aggregation, level):
    kept = select(batch, batch.loss_mask)
    expected = loss_and_gradient(kept, aggregation, level)
    assert_same(loss_and_gradient(batch, aggregation, level), expected)


@for_every_loss
def test_a_completion_of_masked_tokens_only_counts_as_a_masked_one(aggregation, level):
    batch = mixed_batch()
    row = int(batch.completion_lengths.argmax())
    owner = np.repeat(np.arange(len(batch)), batch.completion_lengths)
    weights = np.where(owner == row, 0.0, batch.importance_weights).astype(np.float32)
    mask = batch.loss_mask & (np.arange(len(batch)) != row)
    by_tokens = loss_and_gradient(replace(batch, importance_weights=weights), aggregation, level)
    assert_same(by_tokens, loss_and_gradient(replace(batch, loss_mask=mask), aggregation, level))
    assert abs(by_tokens[0] - loss_and_gradient(batch, aggregation, level)[0]) > 1e-3


@for_every_loss
def test_an_empty_completion_neither_counts_nor_gives_nan(aggregation, level):
    row, empty = make_batch([([1], [2, 3])]), make_batch([([1], [])], groups=[1])
    assert_same(
        loss_and_gradient(concatenate([row, empty]), aggregation, level),
        loss_and_gradient(row, aggregation, level),
    )
    loss, gradient = loss_and_gradient(empty, aggregation, level)
    assert loss == 0.0
    assert not gradient.any()


@for_every_loss
def test_a_batch_masked_entirely_gives_zero_not_nan(aggregation, level):
    batch = make_batch([([1], [2, 3])], loss_mask=[False])
    loss, gradient = loss_and_gradient(batch, aggregation, level)
    assert loss == 0.0
    assert not gradient.any()


@for_every_loss
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_masked_bad_logprob_leaves_the_gradient_of_all_other_tokens(aggregation, level, bad):
    batch = mixed_batch()
    token = np.arange(len(batch.old_logprobs)) == 3
    masked = replace(batch, importance_weights=(~token).astype(np.float32))
    old = np.where(token, bad, batch.old_logprobs).astype(np.float32)
    got = loss_and_gradient(replace(masked, old_logprobs=old), aggregation, level)
    assert got[1].any()
    assert_same(got, loss_and_gradient(masked, aggregation, level))


# -- The mistakes these tests are for ---------------------------------------------------------


def mixed_batch():
    """Groups 0 and 1 on two learners each, uneven in every respect, nothing clipped away."""
    rows = [([1], [2]), ([1], [3] * 6), ([4], [5, 6, 7]), ([4, 1], [8, 9]), ([2], [1, 2, 3, 4])]
    batch = make_batch(
        rows, advantages=[1.0, -1.2, 0.8, 0.5, -2.0], groups=[0, 0, 1, 1, 2], loss_mask=[True] * 5
    )
    old = Policy().logprobs(pad_rows(batch, 0)).detach().numpy() - 0.05
    return replace(batch, old_logprobs=old.astype(np.float32))


MIXED_SPLIT = [(0, 0), (1, 0), (0, 1), (1, 1), (1, 0)]


@for_every_loss
@pytest.mark.parametrize("mistake", ["microbatch", "microbatch_mean", "learner", "learner_mean"])
def test_denominators_of_a_part_are_caught(mistake, aggregation, level):
    """Sums and means of per-part means: what gradient accumulation and DDP do by default."""
    batch = mixed_batch()
    whole = loss_and_gradient(batch, aggregation, level)
    assert_same(loss_and_gradient(batch, aggregation, level, split=MIXED_SPLIT), whole)
    wrong = loss_and_gradient(batch, aggregation, level, split=MIXED_SPLIT, mistake=mistake)
    with pytest.raises(AssertionError):
        assert_same(wrong, whole, tolerance=1e-2)
    assert (wrong[1] - whole[1]).abs().max() > 1e-2


def test_the_mistakes_are_none_where_there_is_one_part():
    batch = mixed_batch()
    for mistake in ("microbatch", "microbatch_mean", "learner", "learner_mean"):
        assert_same(loss_and_gradient(batch, mistake=mistake), loss_and_gradient(batch))
