"""The clipped objective of a token (Eq. 10) and the weights of tokens in the loss (Eq. 12)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, token_batches

from rllib_dapo.errors import SettingError
from rllib_dapo.ops.batching import split_for_ranks
from rllib_dapo.ops.loss import (
    decoupled_clip_objective,
    finite_token_mask,
    loss_normalizer,
    loss_weights,
    weighted_loss,
)

torch.set_num_threads(1)
AGGREGATIONS = ["token_mean", "sequence_mean"]


def reference_objective(new, old, advantage, low=0.2, high=0.28, dual=None):
    """Eq. 10 for one token."""
    ratio = math.exp(new - old)
    value = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    return max(value, dual * advantage) if dual is not None and advantage < 0 else value


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
    assert got.ratio.tolist() == [1.0] * 3
    assert new.grad.tolist() == [-0.5, 0.0, -0.5]
    assert not (got.clipped_low | got.clipped_high | got.clipped_dual).any()


def test_a_zero_weight_alone_would_not_keep_the_nan_out():
    """Why the mask is needed: 0 * NaN is NaN."""
    got = decoupled_clip_objective(torch.tensor([-1.0]), torch.tensor([math.nan]), torch.ones(1))
    assert torch.isnan(weighted_loss(got.objective, torch.zeros(1)))


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
