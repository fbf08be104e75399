"""Chunked token log-probabilities and entropies against the plain way."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples
from torch.utils._python_dispatch import TorchDispatchMode

from rllib_dapo.errors import SettingError
from rllib_dapo.losses.logprobs import token_logprobs_and_entropy

torch.set_num_threads(1)


def inputs(tokens, vocabulary=13, width=5, dtype=torch.float64, bias=False, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()

    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    return (
        normal(tokens, width),
        normal(vocabulary, width),
        targets,
        normal(vocabulary) if bias else None,
    )


def naive(hidden, weight, targets, bias, temperature):
    """All logits at once, derivatives by autograd."""
    logits = hidden @ weight.T if bias is None else hidden @ weight.T + bias
    table = torch.log_softmax(logits / temperature, dim=-1)
    return table[torch.arange(len(targets)), targets], -(table.exp() * table).sum(-1)


def gradients(outputs, leaves, entropy_weight):
    logprobs, entropy = outputs
    pull = torch.linspace(-1, 2, len(logprobs), dtype=logprobs.dtype)
    total = (pull * logprobs).sum()
    if entropy_weight:
        total = total + entropy_weight * (pull.flip(0) * entropy).sum()
    return torch.autograd.grad(total, leaves)


@examples(80)
@given(
    tokens=st.integers(0, 9),
    chunk=st.integers(1, 12),
    temperature=st.sampled_from([0.3, 0.7, 1.0, 2.5]),
    entropy_weight=st.sampled_from([0.0, 0.1]),
    bias=st.booleans(),
)
def test_values_and_gradients_equal_the_plain_way(tokens, chunk, temperature, entropy_weight, bias):
    hidden, weight, targets, offset = inputs(tokens, bias=bias)
    leaves = [hidden, weight] if offset is None else [hidden, weight, offset]
    got = token_logprobs_and_entropy(
        hidden,
        weight,
        targets,
        temperature=temperature,
        chunk_tokens=chunk,
        with_entropy_grad=entropy_weight > 0,
        bias=offset,
    )
    wanted = naive(hidden, weight, targets, offset, temperature)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    for a, b in zip(
        gradients(got, leaves, entropy_weight),
        gradients(wanted, leaves, entropy_weight),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunk", [2, 100])
def test_derivatives_agree_with_finite_differences(chunk):
    hidden, weight, targets, bias = inputs(4, vocabulary=6, width=3, bias=True)

    def function(h, w, b):
        return token_logprobs_and_entropy(
            h, w, targets, temperature=0.7, chunk_tokens=chunk, with_entropy_grad=True, bias=b
        )

    assert torch.autograd.gradcheck(function, (hidden, weight, bias))


def test_values_equal_a_scalar_computation_at_the_sampling_temperature():
    hidden, weight, targets, _ = inputs(3)
    logprobs, entropy = token_logprobs_and_entropy(
        hidden, weight, targets, temperature=0.7, chunk_tokens=2
    )
    for t in range(3):
        logits = [
            sum(a * b for a, b in zip(row, hidden[t].tolist(), strict=True)) / 0.7
            for row in weight.tolist()
        ]
        log_total = math.log(sum(math.exp(z) for z in logits))
        assert logprobs[t].item() == pytest.approx(logits[targets[t]] - log_total, abs=1e-12)
        expected = -sum(math.exp(z - log_total) * (z - log_total) for z in logits)
        assert entropy[t].item() == pytest.approx(expected, abs=1e-12)


def test_before_the_first_update_the_ratio_is_one_only_at_the_sampling_temperature():
    """The sampler's distribution is softmax(logits / 0.7); any other one is off-policy."""
    hidden, weight, targets, _ = inputs(6, dtype=torch.float32)
    sampler = torch.distributions.Categorical(logits=(hidden @ weight.T).detach() / 0.7)
    old = sampler.log_prob(targets)
    same, _ = token_logprobs_and_entropy(hidden, weight, targets, temperature=0.7)
    other, _ = token_logprobs_and_entropy(hidden, weight, targets, temperature=1.0)
    torch.testing.assert_close((same - old).exp(), torch.ones(6), rtol=1e-6, atol=1e-6)
    assert ((other - old).exp() - 1).abs().max() > 0.05


def test_float32_in_gives_float32_out_within_1e_6_of_float64():
    hidden, weight, targets, _ = inputs(50, vocabulary=300, width=16, dtype=torch.float32)
    got = token_logprobs_and_entropy(hidden / 4, weight, targets, chunk_tokens=16)
    exact = naive(hidden.double() / 4, weight.double(), targets, None, 1.0)
    for a, b in zip(got, exact, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=1e-6, atol=2e-6)


def test_half_precision_states_get_float32_results_and_half_precision_gradients():
    hidden, weight, targets, _ = inputs(6, dtype=torch.bfloat16)
    logprobs, entropy = token_logprobs_and_entropy(hidden, weight, targets, chunk_tokens=4)
    assert logprobs.dtype == entropy.dtype == torch.float32
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16


def test_autocast_does_not_make_forward_and_backward_disagree():
    hidden, weight, targets, _ = inputs(6, dtype=torch.float32)
    plain = token_logprobs_and_entropy(hidden, weight, targets, chunk_tokens=4)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = token_logprobs_and_entropy(hidden, weight, targets, chunk_tokens=4)[0]
    torch.testing.assert_close(under, plain, rtol=0, atol=0)


def test_huge_logits_stay_finite():
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0], [0.5]], requires_grad=True)
    logprobs, entropy = token_logprobs_and_entropy(
        hidden, weight, torch.tensor([0, 0]), with_entropy_grad=True
    )
    assert logprobs.tolist() == [0.0, -2e4]
    assert torch.isfinite(entropy).all()
    (logprobs + entropy).sum().backward()
    assert torch.isfinite(hidden.grad).all()


def test_entropy_is_for_display_only_unless_its_gradient_is_asked_for():
    hidden, weight, targets, _ = inputs(4)
    _, entropy = token_logprobs_and_entropy(hidden, weight, targets)
    assert not entropy.requires_grad


def test_a_frozen_head_gets_no_gradient():
    hidden, weight, targets, _ = inputs(4)
    logprobs, _ = token_logprobs_and_entropy(hidden, weight.detach(), targets, chunk_tokens=3)
    (got,) = torch.autograd.grad(logprobs.sum(), hidden)
    (wanted,) = torch.autograd.grad(naive(hidden, weight, targets, None, 1.0)[0].sum(), hidden)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_without_probabilities_is_refused(temperature):
    hidden, weight, targets, _ = inputs(4)
    with pytest.raises(SettingError, match="temperature="):
        token_logprobs_and_entropy(hidden, weight, targets, temperature=temperature)


class LargestTensor(TorchDispatchMode):
    """Remembers the largest result of any operation, in elements."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("with_entropy_grad", [False, True])
def test_no_pass_ever_holds_more_logits_than_a_chunk(with_entropy_grad):
    tokens, vocabulary, chunk = 64, 100, 8
    hidden, weight, targets, _ = inputs(tokens, vocabulary=vocabulary)
    with LargestTensor() as seen:
        logprobs, entropy = token_logprobs_and_entropy(
            hidden, weight, targets, chunk_tokens=chunk, with_entropy_grad=with_entropy_grad
        )
        (logprobs + entropy).sum().backward()
    assert hidden.grad is not None
    assert seen.elements == chunk * vocabulary
