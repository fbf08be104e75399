"""bfloat16 compute with float32 master weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import IDS, KINDS, bytes_kept, load, logits, save

from rllib_dapo.errors import SettingError
from rllib_dapo.losses.logprobs import token_logprobs_and_entropy
from rllib_dapo.model.causal_lm import compute_context

torch.set_num_threads(1)


def logprob_gradients(model: Any, dtype: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Log-probabilities as the RLModule computes them, and gradients of their sum."""
    model.zero_grad(set_to_none=True)
    with compute_context(dtype, "cpu"):
        hidden = model.base_model(input_ids=IDS, use_cache=False).last_hidden_state
    hidden = hidden[:, :-1].flatten(0, 1)
    if dtype == "bfloat16":
        hidden = hidden.bfloat16()
    logprobs, _ = token_logprobs_and_entropy(
        hidden, model.get_output_embeddings().weight, IDS[:, 1:].flatten(), chunk_tokens=4
    )
    logprobs.sum().backward()
    return logprobs.detach(), {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_bfloat16_gradients_arrive_in_float32_close_to_float32s(tmp_path, kind, checkpointing):
    model = load(save(kind, tmp_path), checkpointing=checkpointing)
    before = {n: p.clone() for n, p in model.named_parameters()}
    expected_logprobs, expected = logprob_gradients(model, "float32")
    logprobs, got = logprob_gradients(model, "bfloat16")
    assert logprobs.dtype == torch.float32
    # bfloat16 has 8 bits: 0.4% a rounding, some dozen of them in a row. Measured with three
    # seeds each: log-probabilities 0.02 on average, gradient 1% to 6% of its norm.
    difference = (logprobs - expected_logprobs).abs()
    assert 0 < difference.mean() < 0.05
    error = torch.cat([(got[n] - g).flatten() for n, g in expected.items()]).norm()
    norm = torch.cat([g.flatten() for g in expected.values()]).norm()
    assert 0 < error < 0.1 * norm
    for name, parameter in model.named_parameters():
        assert parameter.dtype == got[name].dtype == torch.float32
        assert torch.equal(parameter, before[name])


def test_small_steps_are_not_lost_in_bfloat16(tiny_model):
    """A step of 1e-6 changes the float32 weights; it would not change bfloat16 ones."""
    model = load(tiny_model)
    weight = model.get_parameter("model.layers.0.mlp.up_proj.weight")
    before = weight.detach().clone()
    logprob_gradients(model, "bfloat16")
    torch.optim.AdamW(model.parameters(), lr=1e-6).step()
    moved = (weight != before).float().mean()
    assert moved > 0.9
    assert (weight.bfloat16() != before.bfloat16()).float().mean() < 0.1


def test_no_bfloat16_copy_of_the_weights_outlives_its_layer(tmp_path):
    """With checkpointing; autocast's cache would keep them all through the forward pass."""
    model = load(save("llama", tmp_path, layers=4), checkpointing=True)
    copy = 2 * sum(p.numel() for p in model.base_model.layers.parameters())

    cached = bytes_kept(model, torch.autocast("cpu", dtype=torch.bfloat16))
    assert bytes_kept(model, compute_context("bfloat16", "cpu")) < cached - 0.9 * copy


def test_float32_changes_nothing(tiny_model):
    model = load(tiny_model)
    plain = logits(model)
    with compute_context("float32", "cpu"):
        assert torch.equal(logits(model), plain)


def test_other_precisions_are_refused():
    with pytest.raises(SettingError, match="compute_dtype='float16'") as caught:
        compute_context("float16", "cuda")
    assert caught.value.setting == "compute_dtype"
