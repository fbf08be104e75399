"""LoRA: only adapters train, and the engine gets exactly the weights they stand for."""

from __future__ import annotations

import builtins
import json
from typing import Any

import peft
import pytest
import torch
from tiny_models import adapted, load, logits, train
from transformers import AutoModelForCausalLM

from rllib_dapo.errors import SettingError
from rllib_dapo.model.lora import adapters_off, add_lora, save_adapter
from rllib_dapo.model.lora_state import adapter_state

torch.set_num_threads(1)
LINEAR = {
    "qwen2": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
}


# -- What is trained ------------------------------------------------------------------------


def test_only_the_adapters_have_gradients_and_they_are_as_many_as_computed(each_folder):
    model, layout = adapted(each_folder)
    train(model, steps=1)
    trained = {n: tuple(p.shape) for n, p in model.named_parameters() if p.grad is not None}
    assert trained == layout.shapes
    assert trained == {n: tuple(p.shape) for n, p in model.named_parameters() if p.requires_grad}
    plain = dict(load(each_folder).named_modules())
    expected = sum(3 * sum(plain[name].weight.shape) for name in layout.layers)  # r·(in + out)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == expected


def test_all_linear_is_every_layer_of_the_blocks_and_never_the_head(each_folder):
    model, layout = adapted(each_folder)
    named = {name.rpartition(".")[2] for name in layout.layers}
    assert named == set(LINEAR[model.config.model_type])
    per_block = 4 if model.config.model_type == "gpt2" else 7
    assert len(layout.layers) == 2 * per_block
    untouched = load(each_folder)
    for module in (model, untouched):
        assert type(module.get_output_embeddings()) is torch.nn.Linear
        assert type(module.get_input_embeddings()) is torch.nn.Embedding


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        (["q_proj"], {f"model.layers.{i}.self_attn.q_proj" for i in (0, 1)}),
        (["mlp.up_proj"], {f"model.layers.{i}.mlp.up_proj" for i in (0, 1)}),
        (("model.layers.1.mlp.up_proj",), {"model.layers.1.mlp.up_proj"}),
        (
            ["model.layers.1.mlp.up_proj", "q_proj"],
            {f"model.layers.{i}.self_attn.q_proj" for i in (0, 1)} | {"model.layers.1.mlp.up_proj"},
        ),
    ],
)
def test_names_choose_layers(qwen, targets, names):
    model, layout = adapted(qwen, targets=targets)
    assert set(layout.layers) == names
    assert {n for n, p in model.named_parameters() if p.requires_grad} == set(layout.shapes)


@pytest.mark.parametrize("targets", ["lm_head", "embed_tokens", ["roj"], ["q_proj", "query"], []])
def test_names_that_are_not_there_are_refused_with_those_that_are(qwen, targets):
    with pytest.raises(SettingError, match="lora_target_modules=") as caught:
        adapted(qwen, targets=targets)
    assert caught.value.setting == "lora_target_modules"
    assert str(sorted(LINEAR["qwen2"])) in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "setting"),
    [({"rank": 0}, "lora_rank"), ({"rank": -1}, "lora_rank"), ({"alpha": 0.0}, "lora_alpha")],
)
def test_impossible_sizes_are_refused(qwen, settings, setting):
    model = load(qwen)
    with pytest.raises(SettingError, match=f"{setting}={next(iter(settings.values()))}") as caught:
        add_lora(model, **{"rank": 2, "alpha": 4, **settings})
    assert caught.value.setting == setting
    assert all(p.requires_grad for p in model.parameters())


def test_without_peft_the_message_says_what_to_install(qwen, monkeypatch):
    real = builtins.__import__

    def fake(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "peft":
            raise ImportError("No module named 'peft'")
        return real(name, *args, **kwargs)

    model = load(qwen)
    monkeypatch.setattr(builtins, "__import__", fake)
    with pytest.raises(SettingError, match=r'pip install "rllib-dapo\[lora\]"'):
        add_lora(model, rank=2, alpha=4)


def test_the_seed_fixes_the_adapters_and_leaves_the_global_generator_alone(qwen):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = (
        adapter_state(m.state_dict(), layout) for m, layout in map(adapted, [qwen] * 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    model = load(qwen)
    layout = add_lora(model, rank=3, alpha=6, seed=1)
    other = adapter_state(model.state_dict(), layout)
    assert not all(torch.equal(first[name], other[name]) for name in first)


# -- The reference policy -----------------------------------------------------------------------


@pytest.mark.parametrize("checkpointing", [False, True])
def test_with_adapters_off_the_model_is_its_base(each_folder, checkpointing):
    base = logits(load(each_folder)).detach()
    model, layout = adapted(each_folder, checkpointing=checkpointing)
    train(model)
    trained = logits(model).detach()
    with adapters_off(model):
        assert torch.equal(logits(model), base)
        with adapters_off(model):
            pass
        assert torch.equal(logits(model), base)
        assert {n for n, p in model.named_parameters() if p.requires_grad} == set(layout.shapes)
    assert torch.equal(logits(model), trained)
    assert not torch.equal(trained, base)
    train(model, steps=1)
    assert all(model.get_parameter(name).grad is not None for name in layout.shapes)


def test_adapters_come_back_after_an_error(qwen):
    model, _ = adapted(qwen)
    train(model)
    trained = logits(model).detach()
    with pytest.raises(ZeroDivisionError), adapters_off(model):
        raise ZeroDivisionError
    assert torch.equal(logits(model), trained)


def test_a_model_without_adapters_is_no_reference(qwen):
    with pytest.raises(ValueError, match="no adapters"), adapters_off(load(qwen)):
        pass


# -- Gradients ----------------------------------------------------------------------------------


def test_checkpointing_changes_no_gradient(each_folder):
    """The first layer's input has no gradient, as the embeddings are frozen."""
    gradients = []
    for checkpointing in (False, True):
        model, layout = adapted(each_folder, checkpointing=checkpointing)
        train(model, torch.optim.SGD(model.parameters(), lr=0.01), steps=3)
        gradients.append({n: model.get_parameter(n).grad for n in layout.shapes})
    for name, gradient in gradients[0].items():
        assert gradient.abs().max() > 0
        assert torch.allclose(gradients[1][name], gradient, rtol=1e-4, atol=1e-5)


# -- Export -------------------------------------------------------------------------------------


@pytest.mark.parametrize("gathered", [False, True])
def test_the_exported_folder_is_one_of_pefts(each_folder, tmp_path, gathered):
    model, layout = adapted(each_folder)
    train(model)
    state = None
    if gathered:  # the model's own tensors are then only shards
        state = {name: t.clone() for name, t in model.state_dict().items()}
        expected = logits(model).detach()
        with torch.no_grad():
            for name in layout.shapes:
                model.get_parameter(name).zero_()
    else:
        expected = logits(model).detach()
    save_adapter(model, tmp_path / "new" / "adapter", layout, state)
    base = AutoModelForCausalLM.from_pretrained(each_folder).eval()
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "new" / "adapter")
    assert (logits(loaded) - expected).abs().max() < 1e-6
    config = json.loads((tmp_path / "new" / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (3, 6, 0.0)
    assert config["task_type"] == "CAUSAL_LM"
    assert config["base_model_name_or_path"] == str(each_folder)
