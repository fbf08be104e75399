"""Log-probabilities of a fixed text by the learner, to compare an engine's with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllib_dapo.model.causal_lm import compute_context
from rllib_dapo.model.packed_attention import packed_inputs
from rllib_dapo.model.packing import PackedRows
from rllib_dapo.model.sharding import is_sharded, reshard, run_as_forward
from rllib_dapo.settings.choices import ComputeDtype
from rllib_dapo.types import FloatArray

PROBE_TOKENS = 48


def probe_text(vocabulary: int, longest: int) -> list[int]:
    """A fixed sequence of token ids that depends on nothing but its arguments.

    Args:
        vocabulary: ids are below this.
        longest: tokens that the engine takes.
    """
    length = max(2, min(PROBE_TOKENS, longest - 1))  # the engine samples one more
    return [int(i) for i in np.random.default_rng(0).integers(0, vocabulary, length)]


@torch.no_grad()
def learner_logprobs(module: Any, token_ids: Sequence[int]) -> FloatArray:
    """float32[T-1], log p(token t | tokens before t) at temperature 1, for t ≥ 1.

    Computed as in training: the same attention, the same precision. Of a sharded model a
    collective call.

    Args:
        module: the RLModule.
        token_ids: T of them, one text.
    """
    causal_lm, config = module.causal_lm, module.model_config
    device = next(causal_lm.parameters()).device
    ids = np.asarray(token_ids, np.int64)[None]

    def compute() -> dict[str, Tensor]:
        dtype: ComputeDtype = "float32" if is_sharded(causal_lm) else config["compute_dtype"]
        head = causal_lm.get_output_embeddings()
        with compute_context(dtype, device.type):
            output = causal_lm.base_model(**_inputs(ids, config["packing"], device))
            logits = head(output.last_hidden_state[0, :-1]).float()
        targets = torch.from_numpy(ids[0, 1:]).to(device)
        return {"logprobs": logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]}

    logprobs = run_as_forward(causal_lm, compute)["logprobs"]
    reshard(causal_lm)
    result: FloatArray = logprobs.cpu().numpy().astype(np.float32)
    return result


def _inputs(ids: np.ndarray[Any, Any], packing: bool, device: torch.device) -> dict[str, Any]:
    """One row for the model, in the layout that its attention was made for."""
    if not packing:
        tokens = torch.from_numpy(ids).to(device)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    length = ids.shape[1]
    row = PackedRows(
        input_ids=ids,
        position_ids=np.arange(length)[None],
        predictors=np.arange(length - 1),
        targets=ids[0, 1:],
        lengths=np.array([length]),
        gather=None,
        scatter=None,
    )
    return dict(packed_inputs(row, device))
