"""Attention over packed rows, as an attention implementation of transformers.

    PackedRows --packed_inputs--> base_model(**inputs) -> hidden states [1, N, H]
    each layer: q, k, v of N tokens -> causal attention within each sequence -> N tokens

There are two ways to compute it. On CUDA in half precision, PyTorch's kernel for sequences of
any length reads them end to end. Everywhere else, sequences of similar length are padded into
buckets, for attention alone: padding comes after a sequence's tokens, so causal attention
never reads it. The indices of sequences and tokens are computed once per micro-batch, not in
every layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rllib_dapo.errors import SettingError, TrainingError
from rllib_dapo.model.packed_layout import BucketIndex, PackedLayout
from rllib_dapo.model.packing import PackedRows

PACKED_ATTENTION = "rllib_dapo_packed"
"""The name of this implementation in transformers."""

# Arguments that models pass to attention and that do not change its result here.
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
    """Return all arguments of `base_model(**inputs)` for one micro-batch.

    Args:
        packed: a flat row of N tokens.
        device: the model's.

    Returns:
        `input_ids` and `position_ids` int64[1, N], no mask, no cache, and `packed_layout`,
        which transformers passes on to the attention of every layer.
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
    """Compute causal attention within each sequence of a packed row; transformers calls it.

    `softmax(q·kᵀ · scaling) · v` over the tokens of the same sequence up to the query's.

    Args:
        module: the attention layer.
        query: [1, Hq, N, D].
        key: [1, Hkv, N, D]; Hq is a multiple of Hkv (grouped-query attention).
        value: [1, Hkv, N, Dv].
        attention_mask: must be None.
        scaling: factor of the scores; None is 1/√D.
        dropout: must be 0, or the ratio to the sampling policy would be a random number.
        packed_layout: where this micro-batch's sequences are (`packed_inputs`).
        sliding_window: None, or a number of tokens that no sequence exceeds.
        is_causal: must be True; None reads it from the layer.
        **kwargs: any argument that would change the result must be None.

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
    if _has_varlen_kernel(q.device) and _half_precision(q, v):
        attended = _end_to_end(q, k, v, packed_layout, scaling)
    else:
        attended = _in_buckets(q, k, v, packed_layout.buckets, scaling)
    return attended[None], None


def _same_dtype(tensor: Tensor, query: Tensor) -> Tensor:
    """Cast q, k, v to one dtype.

    Under autocast q and k may be float32 (from the rotary embedding) where v is in half
    precision.
    """
    device = query.device.type
    if torch.is_autocast_enabled(device):
        return tensor.to(torch.get_autocast_dtype(device))
    return tensor.to(query.dtype)


def _in_buckets(
    q: Tensor, k: Tensor, v: Tensor, index: BucketIndex, scaling: float | None
) -> Tensor:
    """Return [N, Hq, Dv] by padded attention, one call per bucket; q, k, v are [N, heads, D]."""
    repeats = q.shape[1] // k.shape[1]
    if repeats > 1 and q.device.type != "cpu":
        # CUDA's kernels for float32 do not know grouped queries; PyTorch would fall back to a
        # computation with quadratic memory.
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
    q: Tensor, k: Tensor, v: Tensor, layout: PackedLayout, scaling: float | None
) -> Tensor:
    """Return [N, Hq, D] by PyTorch's kernel for sequences end to end; see `_in_buckets`."""
    if layout.gather is not None:
        q, k, v = (x.index_select(0, layout.gather) for x in (q, k, v))
    attended: Any = varlen_attn(
        q, k, v, layout.starts, layout.starts, layout.longest, layout.longest,
        scale=scaling, window_size=(-1, 0), enable_gqa=True,
    )  # fmt: skip
    result: Tensor = (
        attended if layout.scatter is None else attended.index_select(0, layout.scatter)
    )
    return result


def _half_precision(q: Tensor, v: Tensor) -> bool:
    """Return whether the kernel takes them: half precision, and values as wide as keys."""
    return q.dtype in (torch.bfloat16, torch.float16) and q.shape[-1] == v.shape[-1] <= 256


def _has_varlen_kernel(device: torch.device) -> bool:
    """Return whether PyTorch's kernel for sequences end to end runs on a device."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
