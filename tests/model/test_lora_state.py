"""The engine gets exactly the weights that the adapters stand for; checkpoints of adapters."""

from __future__ import annotations

import pickle

import pytest
import torch
from tiny_models import adapted, load, logits, save, train

from rllib_dapo.errors import SettingError
from rllib_dapo.model.lora import add_lora
from rllib_dapo.model.lora_state import LoRALayout, adapter_state, check_adapter_state, merged_state

torch.set_num_threads(1)


# -- Merged weights ---------------------------------------------------------------------------


def test_merged_weights_are_the_formula_in_plain_loops(each_folder):
    model, layout = adapted(each_folder)
    train(model, steps=2)
    state = model.state_dict()
    merged = merged_state(state, layout)
    for name, layer in layout.layers.items():
        w, a, b = (
            state[f"{name}.{part}.weight"].double().tolist()
            for part in ("base_layer", "lora_A.default", "lora_B.default")
        )
        for i, j in [(0, 0), (5, 2), (layer.out_features - 1, layer.in_features - 1)]:
            base = w[j][i] if layer.transposed else w[i][j]
            expected = base + 6 / 3 * sum(b[i][k] * a[k][j] for k in range(3))
            got = merged[f"{name}.weight"]
            got = got[j, i] if layer.transposed else got[i, j]
            assert got.item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_merged_weights_give_the_adapted_models_logits(each_folder, checkpointing, attention):
    model, layout = adapted(each_folder, checkpointing=checkpointing, attention=attention)
    start = logits(model).detach()
    train(model)
    trained = logits(model).detach()
    plain = load(each_folder)
    names = list(plain.state_dict())
    merged = merged_state(model.state_dict(), layout)
    assert list(merged) == names  # tied names too
    plain.load_state_dict(merged, strict=True)
    assert (trained - start).abs().max() > 0.5  # there is something to merge
    assert (logits(plain) - trained).abs().max() < 2e-5
    assert all(t.is_contiguous() and t.dtype == torch.float32 for t in merged.values())


def test_at_first_the_model_and_the_merged_weights_are_the_base_exactly(each_folder):
    plain = load(each_folder)
    model, layout = adapted(each_folder)
    assert torch.equal(logits(model), logits(plain))
    for name, tensor in merged_state(model.state_dict(), layout).items():
        assert torch.equal(tensor, plain.state_dict()[name])


def test_base_weights_are_bit_equal_after_many_rounds(each_folder):
    plain = load(each_folder).state_dict()
    model, layout = adapted(each_folder)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.03)
    for _ in range(20):
        train(model, optimizer, steps=1)
        merged = merged_state(model.state_dict(), layout)
    for name, tensor in model.state_dict().items():
        if name not in layout.shapes:
            assert torch.equal(tensor, plain[name.replace(".base_layer.", ".")])
    # And the last merge is what one merge of these adapters gives, to the last bit.
    fresh, _ = adapted(each_folder)
    fresh.load_state_dict(adapter_state(model.state_dict(), layout), strict=False)
    for name, tensor in merged_state(fresh.state_dict(), layout).items():
        assert torch.equal(tensor, merged[name])


def test_merging_in_place_would_drift(each_folder):
    """What merged_state avoids: adding to W and taking away again leaves rounding behind."""
    model, layout = adapted(each_folder)
    train(model)
    name = next(iter(layout.layers))
    state = model.state_dict()
    w = state[f"{name}.base_layer.weight"].clone()
    change = merged_state(state, layout)[f"{name}.weight"] - w
    drifted = w.clone()
    for scale in torch.linspace(0.5, 2, 20):
        drifted += scale * change
        drifted -= scale * change
    assert not torch.equal(drifted, w)


def test_a_forgotten_transpose_or_scaling_is_caught(tmp_path):
    model, layout = adapted(save("gpt2", tmp_path), targets=["attn.c_proj"])  # a square matrix
    train(model)
    right = logits(model).detach()
    layers = {
        name: type(layer)(layer.in_features, layer.out_features, transposed=False)
        for name, layer in layout.layers.items()
    }
    plain = load(tmp_path)
    for wrong in (LoRALayout(3, 2.0, layers), LoRALayout(3, 1.0, layout.layers)):
        plain.load_state_dict(merged_state(model.state_dict(), wrong))
        assert (logits(plain) - right).abs().max() > 1e-2


def test_tied_embeddings_stay_one_tensor(qwen):
    model, layout = adapted(qwen)
    merged = merged_state(model.state_dict(), layout)
    assert merged["lm_head.weight"].data_ptr() == merged["model.embed_tokens.weight"].data_ptr()
    plain = load(qwen)
    plain.load_state_dict(merged)
    assert plain.lm_head.weight is plain.model.embed_tokens.weight


def test_merging_takes_any_complete_mapping_and_changes_nothing(each_folder):
    model, layout = adapted(each_folder)
    train(model, steps=2)
    state = {name: tensor.clone() for name, tensor in reversed(model.state_dict().items())}
    copies = {name: tensor.clone() for name, tensor in state.items()}
    layout = pickle.loads(pickle.dumps(layout))  # noqa: S301  # it travels between processes
    merged = merged_state(state, layout)
    assert all(torch.equal(state[name], tensor) for name, tensor in copies.items())
    expected = merged_state(model.state_dict(), layout)
    assert merged.keys() == expected.keys()
    assert all(torch.equal(merged[name], tensor) for name, tensor in expected.items())
    assert not any(tensor.requires_grad for tensor in merged.values())


@pytest.mark.parametrize("part", ["lora_A.default", "lora_B.default", "base_layer"])
def test_an_incomplete_state_is_not_merged(qwen, part):
    model, layout = adapted(qwen)
    state = dict(model.state_dict())
    del state[f"model.layers.1.mlp.up_proj.{part}.weight"]
    with pytest.raises(KeyError, match="up_proj"):
        merged_state(state, layout)


def test_half_precision_bases_merge_in_float32(qwen):
    model, layout = adapted(qwen)
    train(model, steps=1)
    exact = merged_state(model.state_dict(), layout)
    half = {n: t if n in layout.shapes else t.bfloat16() for n, t in model.state_dict().items()}
    for name in layout.layers:
        got = merged_state(half, layout)[f"{name}.weight"]
        assert got.dtype == torch.float32
        rounding = exact[f"{name}.weight"].abs().max() * 2**-8
        assert (got - exact[f"{name}.weight"]).abs().max() <= rounding


# -- Checkpoints ----------------------------------------------------------------------------


def test_adapters_alone_restore_the_model(each_folder):
    model, layout = adapted(each_folder)
    train(model)
    small = adapter_state(model.state_dict(), layout)
    assert sum(t.numel() for t in small.values()) < sum(p.numel() for p in model.parameters()) / 2
    other = load(each_folder)
    other_layout = add_lora(other, rank=3, alpha=6, seed=9)
    check_adapter_state(small, other_layout)
    other.load_state_dict(small, strict=False)
    assert torch.equal(logits(other), logits(model))


def test_adapters_of_another_run_are_refused(qwen):
    model, layout = adapted(qwen)
    small = adapter_state(model.state_dict(), layout)
    fewer = {name: t for name, t in small.items() if "q_proj" not in name}
    more = {**small, "lm_head.lora_A.default.weight": torch.zeros(3, 32)}
    for state, words in ((fewer, "missing .*q_proj"), (more, "unexpected .*lm_head")):
        with pytest.raises(SettingError, match=words) as caught:
            check_adapter_state(state, layout)
        assert caught.value.setting == "lora_target_modules"
    with pytest.raises(SettingError, match=r"lora_rank=8.*\[3, 32\], not \[8, 32\]") as caught:
        check_adapter_state(small, LoRALayout(8, 2.0, layout.layers))
    assert caught.value.setting == "lora_rank"
