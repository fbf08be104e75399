"""The clipped objective of a token (Eq. 10), from its own ratio or that of its sequence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from rllib_dapo.errors import SettingError
from rllib_dapo.losses.aggregation import loss_totals, loss_weights
from rllib_dapo.losses.clipped_objective import (
    clipped_objective,
    sequence_log_ratio,
    token_log_ratio,
    weighted_loss,
)

torch.set_num_threads(1)

log_ratios = st.floats(-3, 3)
signs = st.floats(-2, 2)


def doubles(*values, grad=False):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def reference_objective(ratio, advantage, low=0.2, high=0.28, dual=None):
    """Eq. 10 for one ratio."""
    value = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    return max(value, dual * advantage) if dual is not None and advantage < 0 else value


# -- The objective of one token -----------------------------------------------------------


@examples(200)
@given(st.floats(-5, 0), log_ratios, signs, st.sampled_from([None, 2.0, 10.0]))
def test_objective_of_a_token_equals_the_formula(old, difference, advantage, dual):
    new = old + difference
    log_ratio = token_log_ratio(doubles(new), doubles(old), torch.tensor([True]))
    got = clipped_objective(log_ratio, doubles(advantage), dual_clip=dual)
    ratio = math.exp(new - old)
    expected = reference_objective(ratio, advantage, dual=dual)
    assert got.objective.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert got.ratio.item() == pytest.approx(ratio, rel=1e-12)


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
    log_ratio = doubles(math.log(ratio), grad=True)
    got = clipped_objective(log_ratio, doubles(advantage), dual_clip=dual)
    got.objective.sum().backward()
    assert log_ratio.grad.item() == pytest.approx(gradient, rel=1e-9)
    flags = {"low": got.clipped_low, "high": got.clipped_high, "dual": got.clipped_dual}
    assert [name for name, flag in flags.items() if flag.item()] == ([clipped] if clipped else [])
    assert not got.ratio.requires_grad


def test_the_two_clip_ranges_are_decoupled():
    log_ratio, a = doubles(math.log(1.25)), doubles(1.0)
    assert clipped_objective(log_ratio, a).objective.item() == pytest.approx(1.25)
    symmetric = clipped_objective(log_ratio, a, clip_low=0.2, clip_high=0.2)
    assert symmetric.objective.item() == pytest.approx(1.2)


@pytest.mark.parametrize("difference", [-1e4, -100.0, 100.0, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_extreme_ratios_give_neither_nan_nor_infinity(difference, advantage):
    new = torch.tensor([difference], requires_grad=True)
    got = clipped_objective(new, torch.tensor([advantage]))
    got.objective.sum().backward()
    assert torch.isfinite(got.objective).all()
    assert torch.isfinite(new.grad).all()


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
def test_a_masked_bad_logprob_gives_no_nan(bad):
    new = torch.tensor([-1.0, -1.0, -2.0], requires_grad=True)
    old = torch.tensor([-1.0, bad, -2.0])
    mask = torch.isfinite(old)
    log_ratio = token_log_ratio(new, old, mask)
    got = clipped_objective(log_ratio, torch.tensor([1.0, bad, 1.0]), token_mask=mask)
    weighted_loss(got.objective, torch.full((3,), 0.5)).backward()
    assert log_ratio.tolist() == [0.0] * 3
    assert got.objective.tolist() == [1.0, 0.0, 1.0]
    assert got.ratio.tolist() == [1.0] * 3
    assert new.grad.tolist() == [-0.5, 0.0, -0.5]
    assert not (got.clipped_low | got.clipped_high | got.clipped_dual).any()


def test_a_zero_weight_alone_would_not_keep_the_nan_out():
    """Why the mask is needed: 0 * NaN is NaN."""
    got = clipped_objective(torch.tensor([math.nan]), torch.ones(1))
    assert torch.isnan(weighted_loss(got.objective, torch.zeros(1)))


@pytest.mark.parametrize(
    ("bounds", "setting"),
    [
        ({"clip_low": -0.1}, "clip_low"),
        ({"clip_low": 1.0}, "clip_low"),
        ({"clip_low": 0.0}, "clip_low"),
        ({"clip_high": -0.1}, "clip_high"),
        ({"clip_high": math.nan}, "clip_high"),
        ({"dual_clip": 1.0}, "dual_clip"),
    ],
)
def test_impossible_clip_ranges_are_refused(bounds, setting):
    with pytest.raises(SettingError, match=f"{setting}=") as caught:
        clipped_objective(torch.zeros(1), torch.zeros(1), **bounds)
    assert caught.value.setting == setting


# -- The ratio of a sequence ----------------------------------------------------------------


@st.composite
def sequences(draw, min_size=0):
    """Per sequence its advantage and its tokens (new logprob, old logprob, kept)."""
    token = st.tuples(st.floats(-4, 0), st.floats(-4, 0), st.booleans())
    sequence = st.tuples(signs, st.lists(token, max_size=5))
    return draw(st.lists(sequence, min_size=min_size, max_size=5))


def reference_gspo(rows, low, high):
    """GSPO, Eqs. 5 and 7, in loops; with its gradient for every token's log-probability.

    J = 1/B Σ_i min(s_i A_i, clip(s_i) A_i), and ds_i/dlogprob = s_i / |o_i| where the
    unclipped branch is the smaller one.
    """
    count = sum(any(kept for *_, kept in tokens) for _, tokens in rows)
    total, gradient = 0.0, []
    for advantage, tokens in rows:
        kept = [new - old for new, old, keep in tokens if keep]
        if not kept:
            gradient += [0.0] * len(tokens)
            continue
        s = math.exp(sum(kept) / len(kept))
        clipped = min(max(s, 1 - low), 1 + high)
        total += min(s * advantage, clipped * advantage) / count
        slope = s * advantage if s * advantage <= clipped * advantage else 0.0
        gradient += [slope / len(kept) / count if keep else 0.0 for *_, keep in tokens]
    return total, gradient


def gspo(rows, order=None, low=0.2, high=0.28, masked_value=None):
    """The same from the functions under test: (J, gradient), tokens laid out in `order`."""
    flat = [(i, *token) for i, (_, tokens) in enumerate(rows) for token in tokens]
    order = np.arange(len(flat)) if order is None else np.array(order, np.int64)
    ids = torch.tensor([i for i, *_ in flat], dtype=torch.int64)[order]
    keep = torch.tensor([k for *_, k in flat], dtype=torch.bool)[order]
    new, old = (doubles(*(t[column] for t in flat))[order] for column in (1, 2))
    if masked_value is not None:
        new, old = (torch.where(keep, x, doubles(masked_value)) for x in (new, old))
    new.requires_grad_()
    advantages = doubles(*(a for a, _ in rows))

    log_ratio = sequence_log_ratio(token_log_ratio(new, old, keep), ids, len(rows), keep)
    got = clipped_objective(
        log_ratio, advantages[ids], clip_low=low, clip_high=high, token_mask=keep
    )
    lengths = np.array([sum(k for *_, k in tokens) for _, tokens in rows], np.int64)
    groups = np.zeros(len(rows), np.int64)
    weights = loss_weights(
        "sequence_mean", lengths, groups, loss_totals(lengths, groups, 1), max_length=1
    )
    loss = weighted_loss(got.objective, torch.from_numpy(weights)[ids])
    loss.backward()
    gradient = torch.empty_like(new)
    gradient[order] = -new.grad
    return -loss.item(), gradient.tolist()


@examples(200)
@given(sequences(), st.sampled_from([(0.2, 0.28), (3e-4, 4e-4), (0.999, 50.0)]))
def test_the_sequence_ratio_gives_gspos_objective_and_gradient(rows, bounds):
    value, gradient = gspo(rows, low=bounds[0], high=bounds[1])
    expected = reference_gspo(rows, *bounds)
    assert value == pytest.approx(expected[0], rel=1e-10, abs=1e-12)
    assert gradient == pytest.approx(expected[1], rel=1e-9, abs=1e-12)


def test_the_loops_gradient_is_the_slope_of_their_value():
    """The reference itself, by finite differences away from the clip's corners."""
    rows = [(1.5, [(-1.0, -0.9, True), (-2.0, -2.2, True)]), (-0.7, [(-1.0, -1.1, True)])]
    _, gradient = reference_gspo(rows, 0.2, 0.28)
    step, place = 1e-6, 0
    for i, (advantage, tokens) in enumerate(rows):
        for t, (new, old, keep) in enumerate(tokens):
            values = []
            for sign in (1, -1):
                moved = list(rows)
                moved[i] = (
                    advantage,
                    [*tokens[:t], (new + sign * step, old, keep), *tokens[t + 1 :]],
                )
                values.append(reference_gspo(moved, 0.2, 0.28)[0])
            assert gradient[place] == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-6)
            place += 1


@examples(60)
@given(sequences(), st.randoms(use_true_random=False))
def test_order_of_the_tokens_changes_nothing(rows, random):
    order = list(range(sum(len(tokens) for _, tokens in rows)))
    random.shuffle(order)
    value, gradient = gspo(rows, order)
    expected = gspo(rows)
    assert value == pytest.approx(expected[0], abs=1e-12)
    assert gradient == pytest.approx(expected[1], abs=1e-12)


@pytest.mark.parametrize("masked_value", [math.nan, -math.inf, math.inf, -1e4])
@examples(40)
@given(sequences())
def test_a_masked_token_counts_as_if_it_were_not_there(masked_value, rows):
    without = [(a, [t for t in tokens if t[2]]) for a, tokens in rows]
    expected = gspo(without)
    value, gradient = gspo(rows, masked_value=masked_value)
    keep = [t[2] for _, tokens in rows for t in tokens]
    assert value == pytest.approx(expected[0], abs=1e-12)
    assert [g for g, k in zip(gradient, keep, strict=True) if k] == pytest.approx(expected[1])
    assert all(g == 0.0 for g, k in zip(gradient, keep, strict=True) if not k)


def test_every_token_of_a_sequence_has_its_ratio_and_masked_ones_ratio_one():
    keep = torch.tensor([True, True, False, True])
    log_ratio = torch.tensor([0.1, 0.3, 9.0, -0.2])
    got = sequence_log_ratio(log_ratio, torch.tensor([0, 0, 0, 2]), 3, keep)
    assert got.dtype == torch.float32
    assert got.tolist() == pytest.approx([0.2, 0.2, 0.0, -0.2], abs=1e-7)


def test_one_token_per_sequence_makes_both_ratios_the_same():
    log_ratio = torch.linspace(-2, 2, 7)
    keep = torch.ones(7, dtype=torch.bool)
    assert torch.equal(sequence_log_ratio(log_ratio, torch.arange(7), 7, keep), log_ratio)


def test_wrong_sequence_ratios_are_caught():
    """A mean over padding too, a sum instead of a mean, a mean over all sequences."""
    rows = [(1.0, [(-1.0, -1.2, True), (-1.0, -1.1, False)]), (-1.0, [(-1.0, -0.9, True)] * 3)]
    right, _ = reference_gspo(rows, 0.2, 0.28)
    keep = torch.tensor([t[2] for _, tokens in rows for t in tokens])
    log_ratio = torch.where(keep, doubles(0.2, 0.1, -0.1, -0.1, -0.1), doubles(0.0))
    weights, advantages = doubles(0.5, 0, *[1 / 6] * 3), doubles(1, 1, -1, -1, -1)
    wrong = {
        "padding in the mean": doubles(0.1, 0.1, -0.1, -0.1, -0.1),
        "sum": doubles(0.2, 0.2, -0.3, -0.3, -0.3),
        "mean over all sequences": log_ratio.sum() / keep.sum() * torch.ones(5).double(),
        "token ratios": log_ratio + doubles(0.0, 0.0, 0.2, -0.1, -0.1),
    }
    for name, ratio in wrong.items():
        got = clipped_objective(ratio, advantages, token_mask=keep)
        assert abs(-weighted_loss(got.objective, weights).item() - right) > 1e-3, name
    ids = torch.tensor([0, 0, 1, 1, 1])
    got = clipped_objective(
        sequence_log_ratio(log_ratio, ids, 2, keep), advantages, token_mask=keep
    )
    assert -weighted_loss(got.objective, weights).item() == pytest.approx(right, abs=1e-12)


def test_twenty_thousand_tokens_in_float32_do_not_depend_on_their_order():
    rng = np.random.default_rng(0)
    log_ratio = torch.from_numpy(rng.normal(0, 0.3, 20_000).astype(np.float32))
    ids, keep = torch.zeros(20_000, dtype=torch.int64), torch.ones(20_000, dtype=torch.bool)
    order = torch.from_numpy(rng.permutation(20_000))
    forwards = sequence_log_ratio(log_ratio, ids, 1, keep)[0]
    shuffled = sequence_log_ratio(log_ratio[order], ids, 1, keep)[0]
    assert forwards.item() == shuffled.item()
    assert forwards.item() == pytest.approx(math.fsum(log_ratio.tolist()) / 20_000, rel=1e-6)
