"""Tells from a model's configuration and class whether it can read packed rows."""

from __future__ import annotations

from typing import Any

from rllib_dapo.errors import SettingError

# Layers whose attention is causal over the whole sequence, or over a window of it.
_LAYER_TYPES = {"full_attention", "sliding_attention"}


def check_packable(config: Any, longest: int) -> None:
    """Refuse a model whose attention `packed_attention` would not compute correctly.

    No weights are loaded. What a class and its configuration do not tell, `packed_attention`
    refuses when it is called.

    Args:
        config: the transformers configuration.
        longest: tokens of the longest sequence, prompt and completion together.

    Raises:
        SettingError: says why the model cannot read packed rows.
    """
    text = config.get_text_config()
    reason = _class_reason(config) or _layer_reason(text, longest)
    if reason:
        raise SettingError(
            f"packing=True: {config.model_type} {reason}; set packing: false", "packing"
        )


def _class_reason(config: Any) -> str | None:
    """Return why the model's class cannot read packed rows, or None."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return "is not a causal language model of transformers, so its attention is unknown"
    model: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if getattr(model, "_is_stateful", False):
        return "has recurrent layers, whose state would run on from sequence to sequence"
    if not (model._supports_attention_backend and model._can_set_attn_implementation()):
        return "does not let its attention be replaced"
    # Packed attention computes what torch's `scaled_dot_product_attention` computes. Models
    # with attention sinks or position biases declare that this is not enough for them.
    if not model._supports_sdpa:
        return (
            "has attention that PyTorch's scaled_dot_product_attention cannot express (for "
            "instance attention sinks), and neither can packed attention"
        )
    return None


def _layer_reason(text: Any, longest: int) -> str | None:
    """Return why the settings of the language model's layers forbid packing, or None."""
    # `is_decoder` tells nothing: GPT-NeoX, which is causal, leaves it False. The attention of
    # an encoder is refused when it is called.
    if not getattr(text, "is_causal", True) or getattr(text, "use_bidirectional_attention", False):
        return "has attention that is not causal"
    layers = set(getattr(text, "layer_types", None) or ["full_attention"])
    if other := sorted(layers - _LAYER_TYPES):
        return f"has layers of type {', '.join(other)}, which read across sequences"
    if getattr(text, "attn_logit_softcapping", None):
        return "has a softcap on its attention scores, which packed attention does not compute"
    window = getattr(text, "sliding_window", None)
    # Some configurations (Qwen2) have a window that none of their layers uses.
    used = "sliding_attention" in layers or not getattr(text, "layer_types", None)
    if window and used and getattr(text, "use_sliding_window", True) and window < longest:
        return (
            f"has sliding_window={window}, shorter than the longest sequence of {longest} tokens "
            "(max_prompt_length + max_completion_length)"
        )
    return None
