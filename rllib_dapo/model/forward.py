"""The forward pass of a causal language model on a micro-batch, without RLlib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllib_dapo.losses.logprobs import token_logprobs_and_entropy, tokens_at_once
from rllib_dapo.model.causal_lm import compute_context
from rllib_dapo.model.packed_attention import packed_inputs
from rllib_dapo.model.packing import PackedRows
from rllib_dapo.model.sharding import is_sharded, run_as_forward
from rllib_dapo.settings.choices import ComputeDtype


def completion_logprobs(
    causal_lm: Any,
    model_inputs: Mapping[str, Any],
    predictors: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    compute_dtype: ComputeDtype = "float32",
    with_entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities and entropies of completion tokens, with gradient.

    Args:
        causal_lm: a transformers model, sharded or not.
        model_inputs: all arguments of its base model: padded rows, or `packed_inputs` where
            it uses packed attention.
        predictors: int64[T], which of the base model's states, end to end, predicts each
            target (`PackedRows`, `PaddedRows`).
        targets: int64[T], token ids.
        temperature: the temperature of the sampling distribution.
        compute_dtype: the number format of matrix products.
        with_entropy_grad: True gives the entropies a gradient, too.

    Returns:
        (log-probabilities float32[T], entropies float32[T]), in the order of `targets`.
    """

    def forward() -> tuple[Tensor, Tensor]:
        # A sharded model gathers its weights in the format in which it computes.
        dtype: ComputeDtype = "float32" if is_sharded(causal_lm) else compute_dtype
        head = causal_lm.get_output_embeddings()
        with compute_context(dtype, head.weight.device.type):
            output = causal_lm.base_model(**model_inputs)
        hidden = output.last_hidden_state.flatten(0, 1)[predictors]
        if dtype == "bfloat16":
            # Residual streams stay float32 under autocast, but the head is a matrix product.
            hidden = hidden.to(torch.bfloat16)
        return token_logprobs_and_entropy(
            hidden,
            head.weight,
            targets,
            temperature=temperature,
            chunk_tokens=tokens_at_once(head.weight.shape[0]),
            with_entropy_grad=with_entropy_grad,
            bias=getattr(head, "bias", None),
        )

    return run_as_forward(causal_lm, forward)


def next_token_logits(
    causal_lm: Any, input_ids: Tensor, attention_mask: Tensor, *, packed: bool
) -> Tensor:
    """Compute the logits of the token that follows each row.

    Args:
        causal_lm: a transformers model.
        input_ids: int64[B, L].
        attention_mask: int64[B, L], 1 for tokens and 0 for padding on the right.
        packed: True where the model uses packed attention.

    Returns:
        [B, V].
    """
    if packed:
        rows = _without_padding(input_ids, attention_mask)
        output = causal_lm.base_model(**packed_inputs(rows, input_ids.device))
        hidden = output.last_hidden_state[0, torch.from_numpy(rows.predictors)]
    else:
        output = causal_lm.base_model(input_ids=input_ids, attention_mask=attention_mask)
        rows_of, last = torch.arange(len(input_ids)), attention_mask.sum(1) - 1
        hidden = output.last_hidden_state[rows_of, last]
    logits: Tensor = causal_lm.get_output_embeddings()(hidden)
    return logits


def _without_padding(input_ids: Tensor, attention_mask: Tensor) -> PackedRows:
    """Lay padded rows out end to end; the predictors are the ends of the rows."""
    tokens, is_token = input_ids.cpu().numpy(), attention_mask.cpu().numpy().astype(bool)
    lengths = is_token.sum(1)
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    return PackedRows(
        input_ids=tokens[is_token][None],
        position_ids=positions[is_token][None],
        predictors=np.cumsum(lengths) - 1,
        targets=np.zeros(0, np.int64),
        lengths=lengths,
        gather=None,
        scatter=None,
    )
