"""Estimators of the KL divergence to a reference policy, and what their gradients do."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from rllib_dapo.errors import SettingError
from rllib_dapo.losses.kl import kl_estimate
from rllib_dapo.settings.choices import KLEstimator

torch.set_num_threads(1)
KINDS = get_args(KLEstimator)


def reference_estimate(kind, new, ref):
    """One token."""
    ratio = math.exp(ref - new)
    return {"k1": new - ref, "k2": (new - ref) ** 2 / 2, "k3": ratio - 1 - math.log(ratio)}[kind]


def estimate_and_gradient(kind, new, ref, mask=None):
    new = torch.as_tensor(new).clone().requires_grad_()
    keep = torch.ones_like(new, dtype=torch.bool) if mask is None else mask
    got = kl_estimate(kind, new, torch.as_tensor(ref), keep)
    got.sum().backward()
    return got.detach(), new.grad


# -- One token ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@examples(100)
@given(st.floats(-8, 0), st.floats(-8, 0))
def test_an_estimate_equals_its_formula(kind, new, ref):
    got, gradient = estimate_and_gradient(
        kind, torch.tensor([new], dtype=torch.float64), torch.tensor([ref], dtype=torch.float64)
    )
    assert got.item() == pytest.approx(reference_estimate(kind, new, ref), rel=1e-9, abs=1e-12)
    slopes = {"k1": 1.0, "k2": new - ref, "k3": 1 - math.exp(ref - new)}
    assert gradient.item() == pytest.approx(slopes[kind], rel=1e-9, abs=1e-12)
    assert kind == "k1" or got.item() >= -1e-15


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("difference", [-1e4, -100.0, 0.0, 100.0, 1e4])
def test_extreme_differences_give_neither_nan_nor_infinity(kind, difference):
    got, gradient = estimate_and_gradient(kind, torch.zeros(1), torch.tensor([difference]))
    assert torch.isfinite(got).all()
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("difference", [-1e3, -30.0, -1.0, -1e-3, 1e-3, 1.0, 19.0])
def test_a_step_against_the_gradient_moves_towards_the_reference(kind, difference):
    """k1 pushes every sampled token down, whatever the reference says."""
    _, gradient = estimate_and_gradient(kind, torch.zeros(1), torch.tensor([difference]))
    assert math.copysign(1, -gradient.item()) == (
        -1 if kind == "k1" else math.copysign(1, difference)
    )


def test_beyond_the_bound_k3_is_flat_rather_than_pushing_away():
    got, gradient = estimate_and_gradient("k3", torch.zeros(2), torch.tensor([20.0, 21.0]))
    assert got[0] == got[1] == pytest.approx(math.exp(20) - 21)
    assert gradient[1] == 0.0
    # The mistake: bounding the exponential alone leaves the gradient of the linear term.
    new = torch.zeros(1, requires_grad=True)
    delta = 21.0 - new
    (delta.clamp(max=20).exp() - 1 - delta).backward()
    assert new.grad.item() == 1.0  # minimising lowers a probability that is far too low


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_masked_tokens_have_neither_value_nor_gradient(kind, bad):
    mask = torch.tensor([True, False, False])
    got, gradient = estimate_and_gradient(
        kind, torch.tensor([-1.0, bad, -2.0]), torch.tensor([-1.5, -1.0, bad]), mask
    )
    alone = estimate_and_gradient(kind, torch.tensor([-1.0]), torch.tensor([-1.5]))
    assert got.tolist() == [alone[0].item(), 0.0, 0.0]
    assert gradient.tolist() == [alone[1].item(), 0.0, 0.0]


def test_an_unknown_estimator_is_refused():
    with pytest.raises(SettingError, match="kl_estimator='k4'") as caught:
        estimate_and_gradient("k4", torch.zeros(1), torch.zeros(1))
    assert caught.value.setting == "kl_estimator"


# -- Exact expectations over a small vocabulary -----------------------------------------------


def policies(seed):
    """Logits of π_θ and log-probabilities of π_ref over 7 tokens, and π_θ as constants."""
    generator = torch.Generator().manual_seed(seed)
    logits, other = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), other.log_softmax(0), logits.detach().softmax(0)


def expected_gradient(kind, seed):
    """Σ_v π(v) ∇ estimate(v): every token is sampled, as often as it is probable."""
    logits, ref, sampling = policies(seed)
    estimate = kl_estimate(kind, logits.log_softmax(0), ref, torch.ones(7, dtype=torch.bool))
    (gradient,) = torch.autograd.grad((sampling * estimate).sum(), logits)
    return gradient


def true_gradient(seed, *, reverse=False):
    """∇ KL(π_θ ‖ π_ref), or of KL(π_ref ‖ π_θ), written as a sum over the vocabulary."""
    logits, ref, _ = policies(seed)
    new = logits.log_softmax(0)
    terms = ref.exp() * (ref - new) if reverse else new.exp() * (new - ref)
    return torch.autograd.grad(terms.sum(), logits)[0]


@pytest.mark.parametrize("seed", range(3))
def test_k1_and_k3_estimate_the_divergence_without_bias(seed):
    logits, ref, sampling = policies(seed)
    new = logits.detach().log_softmax(0)
    kl = (sampling * (new - ref)).sum().item()
    mean = {
        kind: (sampling * kl_estimate(kind, new, ref, torch.ones(7, dtype=torch.bool))).sum().item()
        for kind in KINDS
    }
    assert mean["k1"] == pytest.approx(kl, rel=1e-12)
    assert mean["k3"] == pytest.approx(kl, rel=1e-12)
    assert abs(mean["k2"] - kl) > 0.01  # biased this far away


@pytest.mark.parametrize("seed", range(3))
def test_k1_as_a_loss_has_no_gradient_on_average(seed):
    """So it regularises nothing, although the true gradient is far from 0."""
    assert expected_gradient("k1", seed).abs().max() < 1e-15
    assert true_gradient(seed).abs().max() > 0.1


@pytest.mark.parametrize("seed", range(3))
def test_k2_as_a_loss_has_the_gradient_of_the_divergence(seed):
    torch.testing.assert_close(expected_gradient("k2", seed), true_gradient(seed))


@pytest.mark.parametrize("seed", range(3))
def test_k3_as_a_loss_has_the_gradient_of_the_other_direction(seed):
    gradient = expected_gradient("k3", seed)
    torch.testing.assert_close(gradient, true_gradient(seed, reverse=True))
    assert (gradient - true_gradient(seed)).abs().max() > 0.01
