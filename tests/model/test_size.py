"""Counts of parameters and activations against real models."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from rllib_dapo.errors import SettingError
from rllib_dapo.model.causal_lm import compute_context
from rllib_dapo.model.size import layer_activations, model_size

SMALL = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 160, "vocab_size": 97,
}  # fmt: skip
CONFIGS = [
    Qwen2Config(**SMALL, tie_word_embeddings=True),
    Qwen2Config(**SMALL, tie_word_embeddings=False),
    Qwen3Config(**SMALL, head_dim=24),
    LlamaConfig(**SMALL),
    MistralConfig(**SMALL),
    GPT2Config(n_embd=64, n_layer=3, n_head=4, vocab_size=97),
]


def _id(config: object) -> str:
    return type(config).__name__


@pytest.mark.parametrize("config", CONFIGS, ids=_id)
def test_parameters_are_those_of_the_loaded_model(config: object) -> None:
    model = AutoModelForCausalLM.from_config(config)
    size = model_size(config)
    assert size.parameters == sum(p.numel() for p in model.parameters())
    assert size.layers == 3
    assert size.outside_layers + 3 * size.largest_layer == size.parameters
    assert size.vocabulary == 97


def test_the_cache_is_counted_as_the_engine_fills_it() -> None:
    config = CONFIGS[0]
    model = AutoModelForCausalLM.from_config(config)
    cache = model(torch.zeros((1, 5), dtype=torch.long), use_cache=True).past_key_values
    values = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert model_size(config).kv_values == values / 5


def test_the_paper_s_model_has_its_published_size() -> None:
    config = Qwen2Config(
        hidden_size=5120, num_hidden_layers=64, num_attention_heads=40, num_key_value_heads=8,
        intermediate_size=27648, vocab_size=152064, tie_word_embeddings=False,
    )  # fmt: skip
    size = model_size(config)
    assert (
        round(size.parameters / 1e9, 1) == 32.8
    )  # the model card says 32.5, 31.0 without embeddings
    assert size.kv_values == 2 * 64 * 8 * 128


def _really_kept(config: object, dtype: str, num_layers: int, num_tokens: int) -> int:
    """Bytes that autograd keeps in a real forward pass with PyTorch's fused attention."""
    config = copy.deepcopy(config)
    config.num_hidden_layers = num_layers  # type: ignore[attr-defined]
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:num_layers]  # type: ignore[attr-defined]
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    tokens = torch.zeros((1, num_tokens), dtype=torch.long)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t),
        compute_context(dtype, "cpu"),  # type: ignore[arg-type]
    ):
        model.base_model(input_ids=tokens, use_cache=False)
    return sum(s.nbytes() for s in kept.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", [CONFIGS[1], CONFIGS[3]], ids=_id)
def test_activations_are_those_that_a_real_forward_pass_keeps(config: object, dtype: str) -> None:
    """PyTorch's attention on CPUs repeats keys and values, which explains the tolerance."""
    tokens = 512
    real = _really_kept(config, dtype, 2, tokens) - _really_kept(config, dtype, 1, tokens)
    layer = layer_activations(config, weights=torch.float32, compute_dtype=dtype)  # type: ignore[arg-type]
    assert layer.per_token * tokens + layer.fixed == pytest.approx(real, rel=0.1)


def test_autocast_keeps_a_copy_of_the_weights_for_the_backward_pass() -> None:
    config = CONFIGS[1]
    layer = layer_activations(config, weights=torch.float32, compute_dtype="bfloat16")
    linear = sum(
        p.numel()
        for name, p in AutoModelForCausalLM.from_config(config).model.layers[0].named_parameters()
        if p.dim() == 2
    )
    assert layer.fixed == 2 * linear
    assert layer_activations(config, weights=torch.bfloat16, compute_dtype="float32").fixed == 0


def test_a_model_whose_layers_cannot_run_without_memory_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    experts = Qwen3MoeConfig(**SMALL, head_dim=16, num_experts=4, moe_intermediate_size=32)
    with pytest.raises(SettingError, match=r"Qwen3MoeConfig.*measure a step"):
        layer_activations(experts, weights=torch.float32, compute_dtype="float32")
    assert caplog.text == ""
