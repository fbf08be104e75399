"""The clipped objective, its weights, and what must not change the gradient."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import VOCABULARY, examples, make_batch, rows_of, token_batches

from rllib_dapo.errors import SettingError
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


# -- References in plain Python --------------------------------------------------------


def reference_objective(new, old, advantage, low=0.2, high=0.28, dual=None):
    """Eq. 10 for one token."""
    ratio = math.exp(new - old)
    value = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    return max(value, dual * advantage) if dual is not None and advantage < 0 else value


def reference_loss(batch, logprobs, aggregation):
    """Eq. 12 (token mean) and GRPO's mean of means, with nested loops."""
    sums, counts, start = [], [], 0
    for row in rows_of(batch):
        _, response, old, advantage, kept, _ = row
        new = logprobs[start : start + len(response)]
        start += len(response)
        if kept and response:
            sums.append(
                sum(reference_objective(n, o, advantage) for n, o in zip(new, old, strict=True))
            )
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
            for sum_, g in zip(gradient, torch.autograd.grad(loss, policy.parameters), strict=True):
                sum_ += g
    return total, torch.cat([g.flatten() for g in gradient])


def assert_same(a, b, tolerance=1e-12):
    assert a[0] == pytest.approx(b[0], abs=tolerance)
    torch.testing.assert_close(a[1], b[1], rtol=tolerance, atol=tolerance)


# -- The objective of one token -----------------------------------------------------------

log_ratios = st.floats(-3, 3)
signs = st.floats(-2, 2)


@examples(200)
@given(st.floats(-5, 0), log_ratios, signs, st.sampled_from([None, 2.0, 10.0]))
def test_objective_of_a_token_equals_the_formula(old, difference, advantage, dual):
    new = old + difference
    got = decoupled_clip_objective(
        *(torch.tensor([x], dtype=torch.float64) for x in (new, old, advantage)), dual_clip=dual
    )
    expected = reference_objective(new, old, advantage, dual=dual)
    assert got.objective.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert got.ratio.item() == pytest.approx(math.exp(new - old), rel=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual", "gradient", "clipped"),
    [
        (1.0, 1.0, None, 1.0, ""),
        (1.27, 1.0, None, 1.27, ""),
        (1.29, 1.0, None, 0.0, "high"),  # already likely enough
        (0.5, 1.0, None, 0.5, ""),  # a good token that became unlikely still learns
        (0.81, -1.0, None, -0.81, ""),
        (0.79, -1.0, None, 0.0, "low"),  # already unlikely enough
        (3.0, -1.0, None, -3.0, ""),  # a bad token that became likely still learns
        (3.0, -1.0, 2.0, 0.0, "dual"),
        (1.9, -1.0, 2.0, -1.9, ""),
        (3.0, 1.0, 2.0, 0.0, "high"),  # the dual clip is for negative advantages only
        (3.0, 0.0, 2.0, 0.0, ""),
    ],
)
def test_which_tokens_are_clipped_and_that_these_have_no_gradient(
    ratio, advantage, dual, gradient, clipped
):
    new = torch.tensor([math.log(ratio) - 1.0], dtype=torch.float64, requires_grad=True)
    old, a = torch.tensor([[-1.0], [advantage]], dtype=torch.float64)
    got = decoupled_clip_objective(new, old, a, dual_clip=dual)
    got.objective.sum().backward()
    assert new.grad.item() == pytest.approx(gradient, rel=1e-9)
    flags = {"low": got.clipped_low, "high": got.clipped_high, "dual": got.clipped_dual}
    assert [name for name, flag in flags.items() if flag.item()] == ([clipped] if clipped else [])


def test_the_two_clip_ranges_are_decoupled():
    new, old, a = (torch.tensor([x]) for x in (math.log(1.25), 0.0, 1.0))
    assert decoupled_clip_objective(new, old, a).objective.item() == pytest.approx(1.25)
    symmetric = decoupled_clip_objective(new, old, a, clip_low=0.2, clip_high=0.2)
    assert symmetric.objective.item() == pytest.approx(1.2)


@pytest.mark.parametrize("difference", [-1e4, -100.0, 100.0, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_extreme_ratios_give_neither_nan_nor_infinity(difference, advantage):
    new = torch.tensor([difference], requires_grad=True)
    got = decoupled_clip_objective(new, torch.zeros(1), torch.tensor([advantage]))
    got.objective.sum().backward()
    assert torch.isfinite(got.objective).all()
    assert torch.isfinite(new.grad).all()


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
def test_a_bad_engine_logprob_is_counted_and_masked_without_a_nan_gradient(bad):
    new = torch.tensor([-1.0, -1.0, -2.0], requires_grad=True)
    old = torch.tensor([-1.0, bad, -2.0])
    mask = finite_token_mask(old)
    assert int((~mask).sum()) == 1
    got = decoupled_clip_objective(new, old, torch.tensor([1.0, -1.0, 1.0]), token_mask=mask)
    weighted_loss(got.objective, torch.full((3,), 0.5)).backward()
    assert got.objective.tolist() == [1.0, 0.0, 1.0]
    assert new.grad.tolist() == [-0.5, 0.0, -0.5]
    assert not (got.clipped_low | got.clipped_high | got.clipped_dual).any()


def test_a_zero_weight_alone_would_not_keep_the_nan_out():
    """Why the mask is needed: 0 * NaN is NaN."""
    new = torch.tensor([-1.0], requires_grad=True)
    got = decoupled_clip_objective(new, torch.tensor([math.nan]), torch.ones(1))
    weighted_loss(got.objective, torch.zeros(1)).backward()
    assert torch.isnan(new.grad).all()


@pytest.mark.parametrize(
    ("bounds", "setting"),
    [
        ({"clip_low": -0.1}, "clip_low"),
        ({"clip_low": 1.1}, "clip_low"),
        ({"clip_high": -0.1}, "clip_high"),
        ({"clip_high": math.nan}, "clip_high"),
        ({"dual_clip": 1.0}, "dual_clip"),
    ],
)
def test_impossible_clip_ranges_are_refused(bounds, setting):
    with pytest.raises(SettingError, match=f"{setting}=") as caught:
        decoupled_clip_objective(*[torch.zeros(1)] * 3, **bounds)
    assert caught.value.setting == setting


# -- The weights ---------------------------------------------------------------------------


def test_token_mean_weighs_tokens_alike_and_sequence_mean_sequences_alike():
    lengths, mask = np.array([1, 3, 5, 0]), np.array([True, True, False, True])
    assert loss_weights("token_mean", lengths, mask).tolist() == [1 / 4, 1 / 4, 0.0, 0.0]
    assert loss_weights("sequence_mean", lengths, mask).tolist() == [1 / 2, 1 / 6, 0.0, 0.0]
    assert loss_normalizer("token_mean", lengths, mask) == 4
    assert loss_normalizer("sequence_mean", lengths, mask) == 2


@examples(60)
@given(token_batches(), st.sampled_from(AGGREGATIONS))
def test_weights_of_all_tokens_sum_to_one(batch, aggregation):
    weights = loss_weights(aggregation, batch.response_lengths, batch.loss_mask)
    assert weights.dtype == np.float64
    anything = batch.num_loss_tokens > 0
    assert (weights * batch.response_lengths).sum() == pytest.approx(float(anything), abs=1e-12)


@examples(60)
@given(token_batches(), st.integers(1, 4), st.sampled_from(AGGREGATIONS))
def test_normalizers_of_parts_add_up_to_that_of_the_whole(batch, ranks, aggregation):
    parts = [
        loss_normalizer(aggregation, part.response_lengths, part.loss_mask)
        for part in split_for_ranks(batch, ranks)
    ]
    whole = loss_normalizer(aggregation, batch.response_lengths, batch.loss_mask)
    assert sum(parts) == whole
    if aggregation == "token_mean":
        assert whole == batch.num_loss_tokens


def test_an_unknown_aggregation_is_refused():
    with pytest.raises(SettingError, match="loss_aggregation='mean'"):
        loss_weights("mean", np.array([1]), np.array([True]))  # type: ignore[arg-type]


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
