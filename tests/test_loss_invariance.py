"""The loss of a minibatch: its value, and what must not change its gradient."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import VOCABULARY, examples, make_batch, rows_of, token_batches

from rllib_dapo.ops.batching import concatenate, microbatches, pad_rows, select, split_for_ranks
from rllib_dapo.ops.logprobs import token_logprobs_and_entropy
from rllib_dapo.ops.loss import (
    decoupled_clip_objective,
    finite_token_mask,
    loss_normalizer,
    loss_weights,
    weighted_loss,
)

torch.set_num_threads(1)
AGGREGATIONS = ["token_mean", "sequence_mean"]


def clipped(new, old, advantage):
    """Eq. 10 for one token, with the paper's bounds."""
    ratio = math.exp(new - old)
    return min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)


def reference_loss(batch, logprobs, aggregation):
    """Eq. 12 (token mean) and GRPO's mean of means, with nested loops."""
    sums, counts, start = [], [], 0
    for row in rows_of(batch):
        _, response, old, advantage, kept, _ = row
        new = logprobs[start : start + len(response)]
        start += len(response)
        if kept and response:
            sums.append(sum(clipped(n, o, advantage) for n, o in zip(new, old, strict=True)))
            counts.append(len(response))
    if not counts:
        return 0.0
    if aggregation == "token_mean":
        return -sum(sums) / sum(counts)
    return -sum(s / c for s, c in zip(sums, counts, strict=True)) / len(counts)


# -- A small causal policy to take gradients of -----------------------------------------


class Policy:
    """Hidden state of a position: tanh of the mean embedding so far. float64."""

    def __init__(self, seed: int = 0, width: int = 4) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.parameters = [
            torch.randn(
                VOCABULARY, width, generator=generator, dtype=torch.float64
            ).requires_grad_()
            for _ in range(2)
        ]

    def logprobs(self, padded):
        embedding, head = self.parameters
        total = embedding[torch.from_numpy(padded.input_ids)].cumsum(1)
        hidden = torch.tanh(total / torch.from_numpy(padded.position_ids + 1)[..., None])
        states = hidden.reshape(-1, head.shape[1])[torch.from_numpy(padded.predictors)]
        targets = torch.from_numpy(padded.targets)
        return token_logprobs_and_entropy(states, head, targets, chunk_tokens=5)[0]


def part_loss(policy, part, aggregation, normalizer, pad_id):
    """The loss of the rows of one forward pass, as a learner computes it."""
    lengths = torch.from_numpy(part.response_lengths)
    weights = loss_weights(
        aggregation, part.response_lengths, part.loss_mask, normalizer=normalizer
    )
    old = torch.from_numpy(part.old_logprobs).double()
    objective = decoupled_clip_objective(
        policy.logprobs(pad_rows(part, pad_id)),
        old,
        torch.from_numpy(part.advantages).double().repeat_interleave(lengths),
        token_mask=finite_token_mask(old),
    ).objective
    return weighted_loss(objective, torch.from_numpy(weights).repeat_interleave(lengths))


def loss_and_gradient(batch, aggregation="token_mean", *, budget=10**6, ranks=1, pad_id=0):
    """Loss and flat gradient, added up over learners and micro-batches."""
    policy = Policy()
    shares = split_for_ranks(batch, ranks)
    normalizer = sum(loss_normalizer(aggregation, s.response_lengths, s.loss_mask) for s in shares)
    total = 0.0
    gradient = [torch.zeros_like(p) for p in policy.parameters]
    for share in shares:
        for rows in microbatches(share.lengths, budget):
            loss = part_loss(policy, select(share, rows), aggregation, normalizer, pad_id)
            total += loss.item()
            for i, g in enumerate(torch.autograd.grad(loss, policy.parameters)):
                gradient[i] += g
    return total, torch.cat([g.flatten() for g in gradient])


def assert_same(a, b, tolerance=1e-12):
    assert a[0] == pytest.approx(b[0], abs=tolerance)
    torch.testing.assert_close(a[1], b[1], rtol=tolerance, atol=tolerance)


# -- The loss of a minibatch -----------------------------------------------------------------


@examples(60)
@given(token_batches(), st.sampled_from(AGGREGATIONS))
def test_loss_equals_nested_loops_over_sequences_and_tokens(batch, aggregation):
    logprobs = Policy().logprobs(pad_rows(batch, 0)).tolist()
    expected = reference_loss(batch, logprobs, aggregation)
    assert loss_and_gradient(batch, aggregation)[0] == pytest.approx(expected, abs=1e-12)


@examples(60)
@given(
    token_batches(min_rows=1),
    st.sampled_from(AGGREGATIONS),
    st.integers(1, 60),
    st.integers(1, 4),
)
def test_any_split_in_microbatches_and_learners_gives_the_same_gradient(
    batch, aggregation, budget, ranks
):
    """Uneven learners, and learners without any row, among them."""
    whole = loss_and_gradient(batch, aggregation)
    assert torch.isfinite(whole[1]).all()
    assert_same(loss_and_gradient(batch, aggregation, budget=budget, ranks=ranks), whole)


@examples(40)
@given(token_batches(min_rows=1), st.randoms(use_true_random=False), st.sampled_from(AGGREGATIONS))
def test_order_of_the_rows_changes_nothing(batch, random, aggregation):
    order = list(range(len(batch)))
    random.shuffle(order)
    shuffled = select(batch, order)
    assert_same(loss_and_gradient(shuffled, aggregation), loss_and_gradient(batch, aggregation))


@examples(40)
@given(token_batches(min_rows=1), st.integers(0, VOCABULARY - 1), st.integers(1, 9))
def test_padding_changes_nothing_whatever_its_id_and_however_much(batch, pad_id, extra):
    """An EOS id as padding id too: real EOS tokens carry loss, padding never does."""
    plain = loss_and_gradient(batch)
    assert_same(loss_and_gradient(batch, pad_id=pad_id), plain)
    # A long masked row widens every other row's padding.
    wide = make_batch([([1], [2] * (10 + extra))], loss_mask=[False])
    assert_same(loss_and_gradient(concatenate([batch, wide]), pad_id=pad_id), plain)


def test_the_closing_eos_carries_loss_also_as_padding_id():
    eos = 2
    batch = make_batch([([1, 4], [5, eos]), ([1], [eos]), ([1, 3, 3], [4, 4, eos])])
    assert pad_rows(batch, eos).targets.tolist().count(eos) == 3
    without = make_batch([([1, 4], [5]), ([1], []), ([1, 3, 3], [4, 4])])
    assert loss_and_gradient(batch, pad_id=eos)[0] != loss_and_gradient(without, pad_id=eos)[0]


@examples(40)
@given(token_batches(min_rows=1), st.sampled_from(AGGREGATIONS))
def test_a_masked_response_counts_as_if_it_had_never_been_sampled(batch, aggregation):
    kept = select(batch, batch.loss_mask)
    assert_same(loss_and_gradient(batch, aggregation), loss_and_gradient(kept, aggregation))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_an_empty_response_neither_counts_nor_gives_nan(aggregation):
    row, empty = make_batch([([1], [2, 3])]), make_batch([([1], [])])
    assert_same(
        loss_and_gradient(concatenate([row, empty]), aggregation),
        loss_and_gradient(row, aggregation),
    )
    loss, gradient = loss_and_gradient(empty, aggregation)
    assert loss == 0.0
    assert not gradient.any()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_batch_masked_entirely_gives_zero_not_nan(aggregation):
    loss, gradient = loss_and_gradient(make_batch([([1], [2, 3])], loss_mask=[False]), aggregation)
    assert loss == 0.0
    assert not gradient.any()


def test_a_bad_logprob_leaves_the_gradient_of_all_other_tokens():
    batch = make_batch([([1], [2, 3, 4])], old_logprobs=[[-2.0, math.nan, -2.5]])
    loss, gradient = loss_and_gradient(batch)
    assert math.isfinite(loss)
    assert torch.isfinite(gradient).all()
    assert gradient.any()


def test_a_mean_per_microbatch_is_a_different_loss():
    """The mistake these tests are for: averaging the parts' means weighs tokens unequally."""
    batch = make_batch([([1], [2]), ([1], [3] * 9)], advantages=[1.0, -1.0])
    right = loss_and_gradient(batch, budget=1)
    parts = [loss_and_gradient(select(batch, [i])) for i in range(2)]
    wrong = sum(loss for loss, _ in parts) / 2, (parts[0][1] + parts[1][1]) / 2
    assert_same(right, loss_and_gradient(batch))
    assert abs(wrong[0] - right[0]) > 0.1
    assert (wrong[1] - right[1]).abs().max() > 1e-3


def test_the_aggregations_agree_on_equal_lengths_and_only_there():
    equal = make_batch([([1], [2, 3]), ([4], [5, 6])], advantages=[1.0, -1.0])
    uneven = make_batch([([1], [2]), ([4], [5, 6, 7])], advantages=[1.0, -1.0])
    assert_same(*(loss_and_gradient(equal, a) for a in AGGREGATIONS))
    token, sequence = (loss_and_gradient(uneven, a)[0] for a in AGGREGATIONS)
    assert abs(token - sequence) > 1e-3


def test_at_the_sampling_policy_the_loss_is_the_negative_mean_advantage():
    """ratio = 1 everywhere, so only the advantages are left."""
    batch = make_batch([([1], [2]), ([4], [5, 6, 7])], advantages=[1.0, -0.5])
    old = Policy().logprobs(pad_rows(batch, 0)).detach().numpy().astype(np.float32)
    loss, _ = loss_and_gradient(replace(batch, old_logprobs=old))
    assert loss == pytest.approx(-(1.0 * 1 - 0.5 * 3) / 4, abs=1e-6)
