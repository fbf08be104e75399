"""Which models can read packed rows, told from their configuration and class."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any

from rllib_dapo.errors import SettingError

# Layers whose attention is causal over the whole sequence, or a window of it.
_LAYER_TYPES = {"full_attention", "sliding_attention"}

# What a model's source hands to its attention and `packed_attention` does not compute.
_UNSUPPORTED = {
    "s_aux": "attention sinks",
    "position_bias": "position biases",
    "indices": "sparse attention",
    "block_indices": "sparse attention",
}


def check_packable(config: Any, longest: int) -> None:
    """Refuse a model whose attention `packed_attention` would not compute rightly.

    Reads the configuration and the model class's source; loads no weights.

    Args:
        config: the transformers configuration.
        longest: tokens of the longest sequence, prompt and completion together.

    Raises:
        SettingError: the model cannot read packed rows, and why.
    """
    text = config.get_text_config()
    reason = _class_reason(config) or _layer_reason(text, longest)
    if reason:
        raise SettingError(
            f"packing=True: {config.model_type} {reason}; set packing: false", "packing"
        )


def _class_reason(config: Any) -> str | None:
    """What the model's class has against packing."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return "is not a causal language model of transformers, so its attention is unknown"
    model: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if getattr(model, "_is_stateful", False):
        return "has recurrent layers, whose state would run on from sequence to sequence"
    if not (model._supports_attention_backend and model._can_set_attn_implementation()):
        return "does not let its attention be replaced"
    source = inspect.getsource(sys.modules[model.__module__])
    calls = " ".join(re.findall(r"= attention_interface\((.*?)\n\s+\)\n", source, re.DOTALL))
    for name, what in _UNSUPPORTED.items():
        if re.search(rf"\b{name}=", calls):
            return f"has {what}, which packed attention does not compute"
    return None


def _layer_reason(text: Any, longest: int) -> str | None:
    """What the settings of the language model's layers have against packing."""
    # `is_decoder` does not tell: GPT-NeoX, which is causal, leaves it False. An encoder's
    # attention is refused when it is called.
    if not getattr(text, "is_causal", True) or getattr(text, "use_bidirectional_attention", False):
        return "has attention that is not causal"
    layers = set(getattr(text, "layer_types", None) or ["full_attention"])
    if other := sorted(layers - _LAYER_TYPES):
        return f"has layers of type {', '.join(other)}, which read across sequences"
    if getattr(text, "attn_logit_softcapping", None):
        return "has a softcap on its attention scores, which packed attention does not compute"
    window = getattr(text, "sliding_window", None)
    # Some configurations (Qwen2) keep a window that none of their layers uses.
    used = "sliding_attention" in layers or not getattr(text, "layer_types", None)
    if window and used and getattr(text, "use_sliding_window", True) and window < longest:
        return (
            f"has sliding_window={window}, shorter than the longest sequence of {longest} tokens "
            "(max_prompt_length + max_completion_length)"
        )
    return None
