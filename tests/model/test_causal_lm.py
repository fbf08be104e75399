"""The model that is trained: no randomness, gradient checkpointing, bfloat16 compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import KINDS, bytes_kept, load, logits, save
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DbrxConfig,
    FalconConfig,
    GPT2Config,
    MixtralConfig,
    OPTConfig,
    PreTrainedModel,
    Qwen2Config,
)
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

from rllib_dapo.errors import SettingError
from rllib_dapo.model.causal_lm import turn_off_dropout

torch.set_num_threads(1)
WIDTHS = {"vocab_size": 33, "hidden_size": 16}


def gradients(model: Any) -> dict[str, torch.Tensor]:
    model.zero_grad(set_to_none=True)
    logits(model).log_softmax(-1)[..., 3].sum().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


# -- Loading --------------------------------------------------------------------------------


def test_weights_are_float32_and_the_folders_own(tiny_model, tmp_path):
    saved = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    half = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
    half.save_pretrained(tmp_path)
    model, from_half = load(tiny_model), load(tmp_path)
    assert {p.dtype for p in from_half.parameters()} == {torch.float32}
    for name, tensor in saved.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
        assert torch.equal(from_half.state_dict()[name], tensor.bfloat16().float())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_mode_is_as_asked(tiny_model, checkpointing):
    model = load(tiny_model, checkpointing=checkpointing)
    assert model.training is checkpointing
    assert model.is_gradient_checkpointing is checkpointing
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("auto_class", ["AutoConfig", "AutoModelForCausalLM"])
def test_an_attribute_error_of_a_models_code_is_not_swallowed(tiny_model, monkeypatch, auto_class):
    def broken(*args: Any, **kwargs: Any) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr(f"transformers.{auto_class}.from_pretrained", broken)
    with pytest.raises(RuntimeError, match="no such thing"):
        load(tiny_model)


# -- Dropout ----------------------------------------------------------------------------------

RANDOM_MODELS = {
    "qwen2": Qwen2Config(
        **WIDTHS,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        attention_dropout=0.1,
    ),
    "gpt2": GPT2Config(
        vocab_size=33, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.1, bos_token_id=1
    ),
    "layerdrop": OPTConfig(
        **WIDTHS,
        ffn_dim=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        word_embed_proj_dim=16,
        layerdrop=0.5,
        dropout=0.0,
    ),
    "router_jitter": MixtralConfig(
        **WIDTHS,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=2,
        router_jitter_noise=0.3,
    ),
    "hidden_dropout": BloomConfig(**WIDTHS, n_layer=2, n_head=2, hidden_dropout=0.2),
    "read_in_forward": FalconConfig(
        **WIDTHS, num_hidden_layers=2, num_attention_heads=2, hidden_dropout=0.2
    ),
    "nested_config": DbrxConfig(
        vocab_size=33,
        d_model=16,
        n_heads=2,
        n_layers=2,
        resid_pdrop=0.0,
        attn_config={"attn_pdrop": 0.2, "kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
        ffn_config={"ffn_hidden_size": 16, "moe_num_experts": 2, "moe_top_k": 1},
    ),
}


@pytest.mark.parametrize("name", RANDOM_MODELS)
def test_dropout_of_any_kind_is_off_in_training_mode(tmp_path, name):
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(RANDOM_MODELS[name])
    plain.save_pretrained(tmp_path)
    plain.train()
    assert any(not torch.equal(logits(plain), logits(plain)) for _ in range(4))  # it is random
    for checkpointing in (False, True):
        model = load(tmp_path, checkpointing=checkpointing).train()  # as RLlib's forward_train
        first, second = logits(model), logits(model)
        assert torch.equal(first, second)
        assert torch.equal(first, logits(model.eval()))
        assert torch.allclose(first, logits(plain.eval()), atol=1e-6)


def test_the_mode_alone_would_not_do(tmp_path):
    """RLlib's forward_train undoes eval(): why probabilities are set to 0."""
    AutoModelForCausalLM.from_config(RANDOM_MODELS["gpt2"]).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(model), logits(model))
    assert not torch.equal(logits(model.train()), logits(model))
    turn_off_dropout(model)
    assert torch.equal(logits(model), logits(model))


def test_dropout_in_nested_configurations_is_off(tmp_path):
    dbrx = AutoModelForCausalLM.from_config(RANDOM_MODELS["nested_config"])
    dbrx.config.of_remote_code = {"inner": {"attn_drop": 0.3, "width": 0.3}}
    dbrx.save_pretrained(tmp_path)
    config = load(tmp_path).config
    assert dbrx.config.attn_config.attn_pdrop == 0.2
    assert config.attn_config.attn_pdrop == 0.0
    assert config.of_remote_code == {"inner": {"attn_drop": 0.0, "width": 0.3}}


def test_dropout_that_no_config_names_is_off_too(tmp_path, monkeypatch):
    AutoModelForCausalLM.from_config(RANDOM_MODELS["gpt2"]).save_pretrained(tmp_path)
    build = GPT2MLP.__init__

    def with_a_number_in_the_code(self: Any, *args: Any) -> None:
        build(self, *args)
        self.dropout = nn.Dropout(0.5)

    monkeypatch.setattr(GPT2MLP, "__init__", with_a_number_in_the_code)
    random = AutoModelForCausalLM.from_pretrained(tmp_path).train()
    assert not torch.equal(logits(random), logits(random))
    model = load(tmp_path).train()
    assert torch.equal(logits(model), logits(model))


def test_only_probabilities_are_set_to_zero():
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop_path = 0.3
            self.drop_layers = 3  # a count
            self.use_dropout = True
            self.scale = 0.3
            self.inner = nn.Sequential(nn.Dropout(0.5), nn.AlphaDropout(0.5), nn.Dropout2d(0.5))

    layer = Layer()
    turn_off_dropout(layer)
    assert [m.p for m in layer.inner] == [0.0] * 3
    assert (layer.drop_path, layer.drop_layers, layer.use_dropout, layer.scale) == (
        0.0,
        3,
        True,
        0.3,
    )


# -- Gradient checkpointing -------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("frozen_embeddings", [False, True])
def test_gradients_with_checkpointing_equal_those_without(tmp_path, kind, frozen_embeddings):
    folder = save(kind, tmp_path)
    plain, recomputing = load(folder), load(folder, checkpointing=True)
    # transformers makes the embeddings' output need a gradient, for reentrant checkpointing.
    recomputing.disable_input_require_grads()
    for model in (plain, recomputing):
        model.get_input_embeddings().requires_grad_(not frozen_embeddings)
    expected, got = gradients(plain), gradients(recomputing)
    assert expected.keys() == got.keys()
    assert expected
    for name, gradient in expected.items():
        assert torch.allclose(got[name], gradient, rtol=1e-6, atol=1e-7), name


def forward_calls(model: Any) -> list[int]:
    """How often each decoder layer's MLP computes in one forward and backward."""
    mlps = [m for n, m in model.named_modules() if n.endswith(".mlp")]
    counts = [0] * len(mlps)
    for i, mlp in enumerate(mlps):

        def count(*_: Any, i: int = i) -> None:
            counts[i] += 1

        mlp.register_forward_pre_hook(count)
    gradients(model)
    return counts


def test_every_layer_is_computed_again_and_its_activations_are_not_kept(tmp_path):
    folder = save("llama", tmp_path, layers=4)
    assert forward_calls(load(folder)) == [1] * 4
    assert forward_calls(load(folder, checkpointing=True)) == [2] * 4
    assert forward_calls(load(folder, checkpointing=True).eval()) == [1] * 4  # why train()
    kept, kept_with = (bytes_kept(load(folder, checkpointing=c)) for c in (False, True))
    assert kept_with < kept / 5


@pytest.mark.parametrize("supported", [False, True])
def test_a_model_without_checkpointing_is_refused_by_name(tiny_model, monkeypatch, supported):
    """Also one that only says that it supports it."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise ValueError("not compatible with gradient checkpointing")

    monkeypatch.setattr(PreTrainedModel, "_set_gradient_checkpointing", refuse)
    monkeypatch.setattr("transformers.Qwen2ForCausalLM.supports_gradient_checkpointing", supported)
    with pytest.raises(SettingError, match="gradient_checkpointing=True: Qwen2") as caught:
        load(tiny_model, checkpointing=True)
    assert caught.value.setting == "gradient_checkpointing"
