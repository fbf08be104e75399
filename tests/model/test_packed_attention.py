"""Packed rows give the hidden states and gradients of padded rows, model by model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from strategies import make_batch
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from rllib_dapo.errors import SettingError, TrainingError
from rllib_dapo.model import packed_attention as module
from rllib_dapo.model.batching import pad_rows, select
from rllib_dapo.model.packable import check_packable
from rllib_dapo.model.packed_attention import packed_attention, packed_inputs, use_packed_attention
from rllib_dapo.model.packed_layout import PackedLayout
from rllib_dapo.model.packing import pack_rows

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,  # attention must matter
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attention_dropout": 0.0,
}
CONFIGS = {
    "qwen2": Qwen2Config(**SIZES),
    "llama": LlamaConfig(**SIZES),
    "qwen3": Qwen3Config(**SIZES),
    "mistral": MistralConfig(**SIZES, sliding_window=64),
    "gemma3": Gemma3TextConfig(**SIZES, sliding_window=64),
}
EXACT = {torch.float64: 1e-6, torch.float32: 1e-5}  # norms and RoPE are float32 in both


def new_model(config, dtype=torch.float32, *, packed=False):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(dtype).eval()
    if packed:
        use_packed_attention(model)
    return model


def make_rows(seed=0):
    """Three prompts, one of them used once, completions from none to long, in mixed order."""
    rng = np.random.default_rng(seed)
    rows = []
    for prompt_length, completions in ((5, (9, 0, 1, 30)), (1, (3, 3, 0)), (12, (7,)), (2, (0, 0))):
        prompt = rng.integers(3, 61, prompt_length).tolist()
        rows += [(prompt, rng.integers(3, 61, n).tolist()) for n in completions]
    return [rows[i] for i in rng.permutation(len(rows))]


BATCH = make_batch(make_rows())


def run(model, batch, layout):
    """Hidden states that predict the targets, and gradients of all parameters.

    `layout` is "padded", "packed" or "shared".
    """
    if layout == "padded":
        padded = pad_rows(batch, 0)
        predictors = padded.predictors
        names = ("input_ids", "attention_mask", "position_ids")
        inputs = {name: torch.from_numpy(getattr(padded, name)) for name in names}
        inputs["use_cache"] = False
    else:
        packed = pack_rows(batch, share_prompts=layout == "shared")
        predictors = packed.predictors
        inputs = packed_inputs(packed, "cpu")
    model.zero_grad()
    states = model.base_model(**inputs).last_hidden_state.flatten(0, 1)
    hidden = states[torch.from_numpy(predictors)]
    weights = torch.linspace(-1, 1, hidden.numel(), dtype=hidden.dtype).sin().view_as(hidden)
    (hidden * weights).sum().backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return hidden.detach(), grads


def assert_close(got, expected, tolerance):
    """Equal up to `tolerance` of the largest number."""
    hidden, grads = got
    expected_hidden, expected_grads = expected
    assert (hidden - expected_hidden).abs().max() <= tolerance * expected_hidden.abs().max()
    assert grads.keys() == expected_grads.keys()
    largest = max(g.abs().max() for g in expected_grads.values())
    for name, grad in grads.items():
        assert (grad - expected_grads[name]).abs().max() <= tolerance * largest, name


@pytest.mark.parametrize("layout", ["packed", "shared"])
@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_states_and_gradients_equal_padded_ones(name, dtype, layout):
    check_packable(CONFIGS[name], longest=64)
    expected = run(new_model(CONFIGS[name], dtype), BATCH, "padded")
    got = run(new_model(CONFIGS[name], dtype, packed=True), BATCH, layout)
    assert_close(got, expected, EXACT[dtype])


@pytest.mark.parametrize("layout", ["packed", "shared"])
@pytest.mark.parametrize(
    "rows",
    [
        [([5, 6, 7], [8, 9])],
        [([5], [6]), ([7], [8]), ([5], [9])],
        [([5], []), ([6], [7]), ([5], [])],
        [([5, 6], [7] * 50), ([8], [9])],
    ],
    ids=["single sequence", "shortest", "empty completions", "very uneven"],
)
def test_corner_cases(rows, layout):
    batch = make_batch(rows)
    expected = run(new_model(CONFIGS["qwen2"], torch.float64), batch, "padded")
    got = run(new_model(CONFIGS["qwen2"], torch.float64, packed=True), batch, layout)
    assert_close(got, expected, 1e-6)


@pytest.mark.parametrize("layout", ["packed", "shared"])
def test_the_order_of_rows_does_not_matter(layout):
    model = new_model(CONFIGS["qwen2"], torch.float64, packed=True)
    order = np.random.default_rng(1).permutation(len(BATCH))
    hidden, _ = run(model, BATCH, layout)
    shuffled, _ = run(model, select(BATCH, order), layout)
    owner = np.repeat(np.arange(len(BATCH)), BATCH.completion_lengths)
    expected = torch.cat([hidden[torch.from_numpy(owner == i)] for i in order])
    assert torch.allclose(shuffled, expected, rtol=0, atol=1e-10)


def change_one_row(rows, victim):
    """The rows with another completion of the same length in row `victim`."""
    changed = list(rows)
    prompt, completion = changed[victim]
    changed[victim] = (prompt, [3 + (t + 1) % 58 for t in completion])
    return changed


@pytest.mark.parametrize("layout", ["packed", "shared"])
def test_no_sequence_sees_another(layout):
    """Nor does a completion see another one of the same prompt."""
    rows = make_rows()
    model = new_model(CONFIGS["qwen2"], packed=True)
    before, _ = run(model, make_batch(rows), layout)
    owner = torch.from_numpy(np.repeat(np.arange(len(BATCH)), BATCH.completion_lengths))
    for victim in range(len(rows)):
        after, _ = run(model, make_batch(change_one_row(rows, victim)), layout)
        others = owner != victim
        assert (after - before)[others].abs().max() <= 1e-6 * before.abs().max()
        if len(rows[victim][1]) > 1:
            assert (after - before)[~others].abs().max() > 1e-2


def plain_causal(layer, query, key, value, attention_mask, *, scaling, **kwargs):
    """What a flat row would get from an attention that knows nothing of sequences."""
    out = scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=True
    )
    return out.transpose(1, 2), None


@pytest.mark.parametrize("layout", ["packed", "shared"])
def test_a_plain_causal_mask_would_leak(layout, monkeypatch):
    monkeypatch.setattr(module, "packed_attention", plain_causal)
    expected, _ = run(new_model(CONFIGS["qwen2"]), BATCH, "padded")
    leaky, _ = run(new_model(CONFIGS["qwen2"], packed=True), BATCH, layout)
    assert (leaky - expected).abs().max() > 0.1 * expected.abs().max()


@pytest.mark.parametrize("layout", ["packed", "shared"])
def test_gradient_checkpointing(layout):
    expected = run(new_model(CONFIGS["llama"], torch.float64), BATCH, "padded")
    model = new_model(CONFIGS["llama"], torch.float64, packed=True).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    calls = []
    model.base_model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    assert_close(run(model, BATCH, layout), expected, 1e-6)
    assert len(calls) == 2  # computed again in the backward pass


@pytest.mark.parametrize("layout", ["packed", "shared"])
def test_autocast_mixes_no_dtypes(layout):
    """Under autocast q and k come in float32 (RoPE), v in bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, _ = run(new_model(CONFIGS["qwen2"]), BATCH, "padded")
        hidden, _ = run(new_model(CONFIGS["qwen2"], packed=True), BATCH, layout)
    assert (hidden - expected).abs().max() <= 0.1 * expected.abs().max()


def test_autocast_comes_before_the_choice_of_the_kernel(monkeypatch):
    seen = []
    monkeypatch.setattr(module, "_has_varlen_kernel", lambda device: True)
    monkeypatch.setattr(
        module, "_half_precision", lambda q, v: bool(seen.append((q.dtype, v.dtype)))
    )
    attend([3])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        attend([3])
    assert seen == [(torch.float32,) * 2, (torch.bfloat16,) * 2]


def test_indices_are_made_once_per_micro_batch(monkeypatch):
    made = []
    tensor = PackedLayout._tensor
    monkeypatch.setattr(
        PackedLayout, "_tensor", lambda self, array: (made.append(1), tensor(self, array))[1]
    )
    run(new_model(CONFIGS["qwen2"], packed=True), BATCH, "shared")
    assert len(made) == 2  # gather and scatter, for all layers


def reference_varlen(q, k, v, starts_q, starts_k, max_q, max_k, scale):
    """[tokens, heads, D]: one causal attention per sequence, in a plain loop."""
    assert starts_q.dtype == torch.int32
    assert starts_q.tolist() == starts_k.tolist()
    assert max_q == max_k == int(starts_q.diff().max())
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    parts = []
    for start, end in zip(starts_q[:-1].tolist(), starts_q[1:].tolist(), strict=True):
        scores = torch.einsum("qhd,khd->hqk", q[start:end], k[start:end]) * scale
        future = torch.ones(end - start, end - start, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        parts.append(torch.einsum("hqk,khd->qhd", weights, v[start:end]))
    return torch.cat(parts)


def fake_varlen_attn(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k,
    *, scale=None, window_size=(-1, -1), enable_gqa=False,
):  # fmt: skip
    assert tuple(window_size) == (-1, 0)  # torch's way to say causal
    assert enable_gqa
    return reference_varlen(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale)


@pytest.mark.parametrize("layout", ["packed", "shared"])
def test_attention_by_the_cuda_kernel(layout, monkeypatch):
    """The kernel needs a GPU: a function with the same signature stands in for it."""
    monkeypatch.setattr(module, "varlen_attn", fake_varlen_attn)
    monkeypatch.setattr(module, "_has_varlen_kernel", lambda device: True)
    monkeypatch.setattr(module, "_half_precision", lambda q, v: True)
    expected = run(new_model(CONFIGS["qwen2"], torch.float64), BATCH, "padded")
    got = run(new_model(CONFIGS["qwen2"], torch.float64, packed=True), BATCH, layout)
    assert_close(got, expected, 1e-6)


def test_the_kernel_is_used_on_cuda_in_half_precision_only(monkeypatch):
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert module._has_varlen_kernel(cuda)
    assert not module._has_varlen_kernel(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not module._has_varlen_kernel(cuda)  # too old
    half, full = torch.zeros(1, 2, 8, dtype=torch.bfloat16), torch.zeros(1, 2, 8)
    assert module._half_precision(half, half)
    assert not module._half_precision(full, full)
    assert not module._half_precision(half, half[..., :4])


def attend(lengths, *, value_width=8, **kwargs):
    """`packed_attention` on random q, k, v."""
    torch.manual_seed(0)
    count = sum(lengths)
    q, k = torch.randn(1, 4, count, 8), torch.randn(1, 2, count, 8)
    v = torch.randn(1, 2, count, value_width)
    layout = PackedLayout(np.array(lengths), None, None, "cpu")
    kwargs.setdefault("packed_layout", layout)
    kwargs.setdefault("attention_mask", None)
    out, _ = packed_attention(torch.nn.Identity(), q, k, v, scaling=0.5, **kwargs)
    return q, k, v, out


@pytest.mark.parametrize("value_width", [8, 4])
def test_attention_equals_a_loop_over_the_sequences(value_width):
    lengths = [3, 1, 70, 12, 1, 3]
    q, k, v, out = attend(lengths, value_width=value_width)
    starts = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    flat = (x[0].transpose(0, 1) for x in (q, k, v))
    expected = reference_varlen(*flat, starts, starts, 70, 70, 0.5)
    assert torch.allclose(out[0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"packed_layout": None}, "packed_inputs"),
        ({"sliding_window": 4}, "sliding_window=4, shorter than a sequence of 5"),
        ({"dropout": 0.1}, "dropout=0.1"),
        ({"is_causal": False}, "is_causal=False"),
        ({"attention_mask": torch.ones(1)}, "attention_mask"),
        ({"softcap": 30.0}, "softcap"),
        ({"s_aux": torch.zeros(4)}, "s_aux"),
        ({"position_bias": torch.zeros(4)}, "position_bias"),
        ({"something_new": 1}, "something_new"),
    ],
)
def test_what_is_not_computed_is_refused(kwargs, message):
    with pytest.raises(TrainingError, match=message) as caught:
        attend([5, 2], **kwargs)
    assert "packing: false" in str(caught.value)


def test_harmless_arguments_are_accepted():
    attend([5, 2], sliding_window=5, softcap=None, s_aux=None, position_ids=torch.zeros(1, 7))


def test_a_model_that_keeps_its_attention_is_refused():
    class Fixed:
        config = Qwen2Config(attn_implementation="sdpa")

        def set_attn_implementation(self, name):
            """As transformers does for such models: warn, and change nothing."""

    with pytest.raises(SettingError, match=r"packing=True: Fixed .*packing: false"):
        use_packed_attention(Fixed())
