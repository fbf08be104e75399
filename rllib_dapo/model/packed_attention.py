"""Attention over packed rows, as an attention implementation of transformers.

    PackedRows --packed_inputs--> base_model(**inputs) -> hidden states [1, N, H]
    each layer: q, k, v of N tokens -> causal attention within each sequence -> N tokens

Two ways compute the same. On CUDA in half precision a kernel for sequences of any length
(flash_attn's, or torch's own) reads them end to end. Everywhere else sequences of similar
length are padded into buckets, for attention alone: padding comes after a sequence's
tokens, so causal attention never reads it. Where sequences and tokens lie is worked out
once per micro-batch, not per layer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rllib_dapo.errors import SettingError, TrainingError
from rllib_dapo.model.packed_layout import BucketIndex, PackedLayout, VarlenIndex
from rllib_dapo.model.packing import PackedRows

PACKED_ATTENTION = "rllib_dapo_packed"
"""The name of this implementation in transformers."""

# What models hand to attention and this one has no use for, or handles by name.
_IRRELEVANT = {
    "position_ids", "position_embeddings", "past_key_values", "use_cache", "cache_position",
    "output_attentions", "output_hidden_states", "output_router_logits", "return_dict",
}  # fmt: skip


def use_packed_attention(model: Any) -> None:
    """Switch a transformers model to packed attention; it then reads packed rows only.

    Raises:
        SettingError: the model's attention cannot be replaced.
    """
    AttentionInterface.register(PACKED_ATTENTION, packed_attention)
    model.set_attn_implementation(PACKED_ATTENTION)
    if model.config.get_text_config()._attn_implementation != PACKED_ATTENTION:
        raise SettingError(
            f"packing=True: {type(model).__name__} does not let its attention be replaced; "
            "set packing: false",
            "packing",
        )


def packed_inputs(packed: PackedRows, device: torch.device | str) -> dict[str, Any]:
    """All arguments of `base_model(**inputs)` for one micro-batch.

    Args:
        packed: N tokens.
        device: the model's.

    Returns:
        `input_ids` and `position_ids` int64[1, N], no mask, no cache, and `packed_layout`,
        which transformers hands through to the attention of every layer.
    """
    return {
        "input_ids": torch.from_numpy(packed.input_ids).to(device),
        "position_ids": torch.from_numpy(packed.position_ids).to(device),
        "attention_mask": None,
        "use_cache": False,
        "packed_layout": PackedLayout(packed.lengths, packed.gather, packed.scatter, device),
    }


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed_layout: PackedLayout | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence of a packed row; transformers calls it.

    `softmax(q·kᵀ · scaling) · v` over the tokens of the same sequence up to the query's.

    Args:
        module: the attention layer.
        query: [1, Hq, N, D].
        key: [1, Hkv, N, D]; Hq is a multiple of Hkv (grouped-query attention).
        value: [1, Hkv, N, Dv].
        attention_mask: None.
        scaling: of the scores; None is 1/√D.
        dropout: 0; the ratio to the sampling policy would be a random number.
        packed_layout: of this micro-batch (`packed_inputs`).
        sliding_window: None, or tokens that no sequence exceeds.
        is_causal: True, or None if the layer says so itself.
        **kwargs: anything that would change the result must be None.

    Returns:
        (attended [1, N, Hq, Dv], None).

    Raises:
        TrainingError: the model asks for something that is not computed here.
    """
    if packed_layout is None:
        raise TrainingError(
            f"attention {PACKED_ATTENTION!r} got no packed_layout: give the model "
            "packed_inputs(...), or set packing: false"
        )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    unsupported = {
        "is_causal=False": not causal,
        "attention_mask": attention_mask is not None,
        f"dropout={dropout}": dropout != 0.0,
        f"sliding_window={sliding_window}, shorter than a sequence of {packed_layout.longest} "
        "tokens": sliding_window is not None and sliding_window < packed_layout.longest,
        **{name: value is not None for name, value in kwargs.items() if name not in _IRRELEVANT},
    }
    if any(unsupported.values()):
        asked = ", ".join(name for name, present in unsupported.items() if present)
        raise TrainingError(
            f"{type(module).__name__} asks for {asked}, which packed attention does not "
            "compute; set packing: false"
        )
    q, k, v = (_same_dtype(x, query)[0].transpose(0, 1) for x in (query, key, value))
    kernel = _varlen_kernel(q.device) if _half_precision(q, v) else None
    if kernel is not None:
        attended = _end_to_end(q, k, v, packed_layout.varlen, scaling, kernel)
    else:
        attended = _in_buckets(q, k, v, packed_layout.buckets, scaling)
    return attended[None], None


def _same_dtype(tensor: Tensor, query: Tensor) -> Tensor:
    """Under autocast q and k may be float32 from the rotary embedding, beside v in half."""
    device = query.device.type
    if torch.is_autocast_enabled(device):
        return tensor.to(torch.get_autocast_dtype(device))
    return tensor.to(query.dtype)


def _in_buckets(
    q: Tensor, k: Tensor, v: Tensor, index: BucketIndex, scaling: float | None
) -> Tensor:
    """[N, Hq, Dv] by padded attention, one call per bucket; q, k, v are [N, heads, D]."""
    repeats = q.shape[1] // k.shape[1]
    if repeats > 1 and q.device.type != "cpu":
        # CUDA's kernels for float32 know no grouped queries; the fallback is quadratic.
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        repeats = 1
    sizes = [n * width for n, width in index.shapes]
    pieces = [x.index_select(0, index.gather).split(sizes) for x in (q, k, v)]
    parts = []
    for shape, *qkv in zip(index.shapes, *pieces, strict=True):
        q, k, v = (x.unflatten(0, shape).transpose(1, 2) for x in qkv)
        attended = scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scaling, enable_gqa=repeats > 1
        )
        parts.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts).index_select(0, index.scatter)


def _end_to_end(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    index: VarlenIndex,
    scaling: float | None,
    kernel: Callable[..., Any],
) -> Tensor:
    """[N, Hq, D] by a kernel that knows where sequences start; q, k, v are [N, heads, D]."""
    if index.gather is not None:
        q, k, v = (x.index_select(0, index.gather) for x in (q, k, v))
    attended: Tensor = kernel(q, k, v, index.starts, index.longest, scaling)
    return attended if index.scatter is None else attended.index_select(0, index.scatter)


def _half_precision(q: Tensor, v: Tensor) -> bool:
    """True for what the kernels take: half precision, and values as wide as keys."""
    return q.dtype in (torch.bfloat16, torch.float16) and q.shape[-1] == v.shape[-1] <= 256


@cache
def _varlen_kernel(device: torch.device) -> Callable[..., Any] | None:
    """Causal attention (q, k, v, starts, longest, scaling) on `device`, or None.

    flash_attn where it is installed, as its releases know the newest GPUs; else torch's.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return None
    try:
        flash_attn = import_module("flash_attn")
    except ImportError:
        from torch.nn.attention.varlen import varlen_attn

        return lambda q, k, v, starts, longest, scaling: varlen_attn(
            q, k, v, starts, starts, longest, longest,
            scale=scaling, window_size=(-1, 0), enable_gqa=True,
        )  # fmt: skip
    return lambda q, k, v, starts, longest, scaling: flash_attn.flash_attn_varlen_func(
        q, k, v, starts, starts, longest, longest, softmax_scale=scaling, causal=True
    )
