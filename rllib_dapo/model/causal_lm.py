"""Loads the causal language model for training, and sets the precision of its forward pass.

Parameters are always float32: an AdamW step at a learning rate of 1e-6 is smaller than the
spacing of bfloat16 around most weights and would be rounded away. `compute_context` computes
matrix products in bfloat16 and leaves the parameters and their gradients in float32.

No forward pass is random. With dropout, the ratio π_θ/π_old of an unchanged policy would be
a random number instead of 1. Calling `eval()` is not enough, because RLlib's `forward_train`
calls `train()` each time, and transformers recomputes activations in training mode only. So
the dropout probabilities themselves are set to 0.
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
    gradient_checkpointing: bool,
    weights: bool = True,
) -> nn.Module:
    """Load a causal language model for training.

    Args:
        path: a Hugging Face folder or hub id.
        trust_remote_code: run Python code that comes with the model.
        gradient_checkpointing: keep only each layer's input for the backward pass and
            compute the rest again there. This takes about a third more time, and the memory
            of one layer's activations instead of all.
        weights: False returns the same model on the meta device, without weights.

    Returns:
        A transformers model on the CPU with float32 parameters and every dropout
        probability 0. It is in training mode with `gradient_checkpointing`, which
        transformers would skip otherwise, and else in evaluation mode.

    Raises:
        RuntimeError: the model's code raised an AttributeError. RLlib's `RLModuleSpec.build`
            would hide an AttributeError.
        SettingError: the model does not support gradient checkpointing.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": torch.float32, "trust_remote_code": trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        _turn_off_dropout_in_config(config)
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

    This finds the dropout layers of PyTorch, and attributes of any layer that are named like
    dropout (`attention_dropout`, `layerdrop`, `drop_prob`, …). It cannot find a number that is
    written into the code of a `forward`.
    """
    for layer in module.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.p = 0.0
        _set_probabilities_to_zero(layer.__dict__)


def compute_context(dtype: ComputeDtype, device_type: str) -> AbstractContextManager[Any]:
    """Return the context of a forward pass that computes in `dtype`.

    The backward pass runs outside of it. Under bfloat16 the residual stream of most models
    is still float32 (as their embeddings are), so hidden states must be cast before a head
    that is multiplied outside of autocast.

    Args:
        dtype: `float32` changes nothing. `bfloat16` computes matrix products in bfloat16,
            and softmax, norms and losses in float32.
        device_type: `cuda` or `cpu`.

    Raises:
        SettingError: another dtype.
    """
    if dtype == "float32":
        return nullcontext()
    if dtype == "bfloat16":
        # A forward pass uses each parameter once, so autocast's cache would save no cast. With
        # gradient checkpointing it would also keep a bfloat16 copy of all parameters; without,
        # autograd keeps this copy for the backward pass anyway.
        return torch.autocast(device_type, dtype=torch.bfloat16, cache_enabled=False)
    raise SettingError(
        f"compute_dtype={dtype!r}: use 'float32' or 'bfloat16' (float16 would need loss scaling)",
        "compute_dtype",
    )


def _turn_off_dropout_in_config(config: Any) -> None:
    """Set dropout to 0 in a configuration: some layers (Falcon's) read it in every pass.

    Configurations may hold other ones (`text_config`, `attn_config`), as objects or as
    dictionaries.
    """
    values = config if isinstance(config, MutableMapping) else config.__dict__
    _set_probabilities_to_zero(values)
    for value in list(values.values()):
        if isinstance(value, MutableMapping) or hasattr(value, "to_diff_dict"):
            _turn_off_dropout_in_config(value)


def _set_probabilities_to_zero(values: MutableMapping[str, Any]) -> None:
    """Set every value named like a dropout to 0; only floats are probabilities."""
    for name, value in values.items():
        if isinstance(value, float) and ("drop" in str(name) or "jitter" in str(name)):
            values[name] = 0.0


def _checkpoint_layers(causal_lm: Any) -> None:
    """Let transformers compute each decoder layer again in the backward pass.

    The non-reentrant variant needs no input with a gradient, so it works where the embeddings
    are frozen (LoRA). No layer draws random numbers, so their state need not be kept.
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
