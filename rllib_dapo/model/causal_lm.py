"""Load the causal language model that is trained, and the precision it computes in.

Parameters are float32 always: an AdamW step at a learning rate of 1e-6 is smaller than the
spacing of bfloat16 around most weights and would be rounded away. `compute_context` makes
matrix products in bfloat16 and leaves the parameters and their gradients as they are.

No forward pass is random. With dropout the ratio π_θ/π_old of an unchanged policy would be
a random number instead of 1. Calling `eval()` is not enough: RLlib's `forward_train` calls
`train()` each time, and transformers recomputes activations in training mode only. So the
probabilities themselves are set to 0.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from rllib_dapo.errors import SettingError
from rllib_dapo.settings.choices import ComputeDtype


def load_causal_lm(
    path: str,
    *,
    trust_remote_code: bool,
    attn_implementation: str | None,
    gradient_checkpointing: bool,
    weights: bool = True,
) -> nn.Module:
    """Load a causal language model for training.

    Args:
        path: a Hugging Face folder or hub id.
        trust_remote_code: run Python code that comes with the model.
        attn_implementation: a name that transformers knows, or one registered with its
            `AttentionInterface` before this call; None takes the model's own default.
        gradient_checkpointing: keep only each layer's input for the backward pass and
            compute the rest again there: about a third more work, memory of one layer
            instead of all.
        weights: False makes the same model on the meta device, without any.

    Returns:
        A transformers model on the CPU with float32 parameters and every dropout
        probability 0. In training mode with `gradient_checkpointing` (without, transformers
        skips it), else in evaluation mode.

    Raises:
        RuntimeError: the model's code raised an AttributeError, which RLlib's
            `RLModuleSpec.build` would swallow.
        SettingError: the model does not support gradient checkpointing.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    options: dict[str, Any] = {}
    if attn_implementation is not None:
        options["attn_implementation"] = attn_implementation
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        _turn_off_dropout_in_config(config)
        options |= {"dtype": torch.float32, "trust_remote_code": trust_remote_code}
        if weights:
            causal_lm = AutoModelForCausalLM.from_pretrained(path, config=config, **options)
        else:
            with torch.device("meta"):
                causal_lm = AutoModelForCausalLM.from_config(config, **options)
    except AttributeError as error:
        raise RuntimeError(f"model={path!r} cannot be loaded: {error}") from error
    turn_off_dropout(causal_lm)
    if gradient_checkpointing:
        _checkpoint_layers(causal_lm)
    model: nn.Module = causal_lm.train(gradient_checkpointing)
    return model


def turn_off_dropout(module: nn.Module) -> None:
    """Set every dropout (and router jitter) of a model to 0, also for training mode.

    Found are the dropout layers of PyTorch, and attributes of any layer that are named
    like one (`attention_dropout`, `layerdrop`, `drop_prob`, …). A number written into the
    code of a `forward` cannot be found.
    """
    for layer in module.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.p = 0.0
        _set_probabilities_to_zero(layer.__dict__)


def compute_context(dtype: ComputeDtype, device_type: str) -> AbstractContextManager[Any]:
    """The context of a forward pass that computes in `dtype`.

    The backward pass runs outside of it. Under bfloat16 the residual stream of most models
    is still float32 (their embeddings are), so hidden states have to be cast before a head
    that is multiplied outside of autocast.

    Args:
        dtype: `float32` changes nothing. `bfloat16` makes matrix products in bfloat16 and
            softmax, norms and losses in float32.
        device_type: `cuda` or `cpu`.

    Raises:
        SettingError: another dtype.
    """
    if dtype == "float32":
        return nullcontext()
    if dtype == "bfloat16":
        # Each parameter is used once in a forward pass. Autocast's cache would save no cast and
        # keep a bfloat16 copy of all of them until the pass ends.
        return torch.autocast(device_type, dtype=torch.bfloat16, cache_enabled=False)
    raise SettingError(
        f"compute_dtype={dtype!r}: use 'float32' or 'bfloat16' (float16 would need loss scaling)",
        "compute_dtype",
    )


def _turn_off_dropout_in_config(config: Any) -> None:
    """Set dropout to 0 here too: some layers (Falcon's) read it in every forward pass.

    Configurations may hold others (`text_config`, `attn_config`), as objects or as
    dictionaries.
    """
    values = config if isinstance(config, MutableMapping) else config.__dict__
    _set_probabilities_to_zero(values)
    for value in list(values.values()):
        if isinstance(value, MutableMapping) or hasattr(value, "to_diff_dict"):
            _turn_off_dropout_in_config(value)


def _set_probabilities_to_zero(values: MutableMapping[str, Any]) -> None:
    """Set what is named like a dropout to 0; only floats are probabilities."""
    for name, value in values.items():
        if isinstance(value, float) and ("drop" in str(name) or "jitter" in str(name)):
            values[name] = 0.0


def _checkpoint_layers(causal_lm: Any) -> None:
    """Let transformers compute each decoder layer again in the backward pass.

    The non-reentrant way works where the embeddings are frozen (LoRA), as it needs no input
    with a gradient. No layer draws random numbers, so their state is not kept.
    """
    try:
        causal_lm.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False, "preserve_rng_state": False}
        )
    except (ValueError, TypeError, NotImplementedError) as error:
        raise SettingError(
            f"gradient_checkpointing=True: {type(causal_lm).__name__} does not support it "
            f"({error}). Set it to False and lower `max_tokens_per_microbatch` if memory is short.",
            "gradient_checkpointing",
        ) from error
