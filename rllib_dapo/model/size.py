"""Counts a model's parameters, and the memory of its activations and its key-value cache.

The model is built without memory from its configuration alone, so a model of any size is counted
in a second or so, and no weights are needed.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AttentionInterface, AutoModelForCausalLM

from rllib_dapo.errors import SettingError
from rllib_dapo.model.causal_lm import compute_context
from rllib_dapo.model.sharding import decoder_layers
from rllib_dapo.settings.choices import ComputeDtype

_COUNTED_ATTENTION = "rllib_dapo_counted"
_FEW_TOKENS = 256


@dataclass(frozen=True, slots=True)
class ModelSize:
    """How large a model is. All counts are numbers of values, not of bytes.

    Attributes:
        parameters: all parameters; tied ones count once.
        layers: decoder layers.
        largest_layer: parameters of the largest decoder layer.
        outside_layers: parameters outside of the decoder layers: embeddings, norm and head.
        hidden: width of the hidden states.
        vocabulary: rows of the output head.
        kv_values: keys and values of one token in all layers.
    """

    parameters: int
    layers: int
    largest_layer: int
    outside_layers: int
    hidden: int
    vocabulary: int
    kv_values: int


def model_size(config: Any) -> ModelSize:
    """Count a causal language model.

    Args:
        config: its transformers configuration.

    Raises:
        SettingError: the model does not say what its layers are.
    """
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    layers = decoder_layers(model)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    of_layers, parameters = [_parameters(layer) for layer in layers], _parameters(model)
    return ModelSize(
        parameters=parameters,
        layers=len(layers),
        largest_layer=max(of_layers),
        outside_layers=parameters - sum(of_layers),
        hidden=int(text.hidden_size),
        vocabulary=int(model.get_output_embeddings().weight.shape[0]),
        kv_values=2 * int(heads) * int(width) * len(layers),
    )


@dataclass(frozen=True, slots=True)
class LayerActivations:
    """What one decoder layer keeps for its backward pass, in bytes.

    Attributes:
        per_token: for each token.
        fixed: whatever the number of tokens, such as copies of weights in another format.
    """

    per_token: float
    fixed: float


def layer_activations(
    config: Any, *, weights: torch.dtype, compute_dtype: ComputeDtype
) -> LayerActivations:
    """Count what one decoder layer keeps for its backward pass.

    Layers are run on tensors without memory (`FakeTensorMode`), and the tensors that autograd
    saves are counted. Attention is counted as a kernel that keeps queries, keys, values, its
    output and one float32 number for each head, and no matrix of tokens by tokens.

    Args:
        config: the model's transformers configuration.
        weights: the number format of the weights in the forward pass.
        compute_dtype: the format of matrix products, see `causal_lm.compute_context`.

    Raises:
        SettingError: the model's layers cannot be counted; the remedy is in the message.
    """
    kept = {
        (layers, tokens): _kept_bytes(_with_layers(config, layers), weights, compute_dtype, tokens)
        for layers in (1, 2)
        for tokens in (_FEW_TOKENS, 2 * _FEW_TOKENS)
    }
    few = kept[2, _FEW_TOKENS] - kept[1, _FEW_TOKENS]
    many = kept[2, 2 * _FEW_TOKENS] - kept[1, 2 * _FEW_TOKENS]
    return LayerActivations(per_token=(many - few) / _FEW_TOKENS, fixed=2 * few - many)


class _CountedAttention(torch.autograd.Function):
    """Keeps what a fused attention kernel keeps for its backward pass."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return a tensor in the shape of attention's output.

        Args:
            ctx: autograd's context.
            query: [B, heads, T, D].
            key: [B, key-value heads, T, D].
            value: [B, key-value heads, T, D].
        """
        output = query.new_empty((*query.shape[:-1], value.shape[-1]))
        log_sum = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, log_sum)
        return output


def _counted_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, None]:
    if torch.is_autocast_enabled("cpu"):  # Autocast gives attention half precision, too.
        query, key, value = (t.to(torch.bfloat16) for t in (query, key, value))
    output: Tensor = _CountedAttention.apply(query, key, value)  # type: ignore[no-untyped-call]
    return output.transpose(1, 2), None


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _with_layers(config: Any, number: int) -> Any:
    """A copy of a configuration with this many layers of the kind of its first ones."""
    shorter = copy.deepcopy(config)
    text = shorter.get_text_config()
    text.num_hidden_layers = number
    if (kinds := getattr(text, "layer_types", None)) is not None:
        text.layer_types = list(kinds[:1]) * number
    return shorter


def _kept_bytes(
    config: Any, weights: torch.dtype, compute_dtype: ComputeDtype, num_tokens: int
) -> int:
    """The bytes of all tensors, weights excepted, that a forward pass keeps for the backward."""
    AttentionInterface.register(_COUNTED_ATTENTION, _counted_attention)
    # PyTorch would log the traceback of an error that is reported here in a line.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    kept: dict[int, Any] = {}  # The storages stay referenced, so that no address is used twice.
    try:
        with FakeTensorMode():
            model: Any = AutoModelForCausalLM.from_config(config, dtype=weights)
            model.set_attn_implementation(_COUNTED_ATTENTION)
            own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

            def keep(tensor: Tensor) -> Tensor:
                storage = tensor.untyped_storage()
                if storage._cdata not in own:
                    kept[storage._cdata] = storage
                return tensor

            tokens = torch.zeros((1, num_tokens), dtype=torch.long)
            with (
                torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
                compute_context(compute_dtype, "cpu"),
            ):
                model.base_model(input_ids=tokens, position_ids=tokens, use_cache=False)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SettingError(
            f"model: the activations of a {type(config).__name__} cannot be counted "
            f"({first_line}); measure a step on one GPU instead",
            "model",
        ) from error
    return sum(storage.nbytes() for storage in kept.values())
