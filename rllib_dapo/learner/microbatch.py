"""Turns rows of a `TokenBatch` into the tensors of one forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rllib_dapo.model.batching import PaddedRows, microbatches, pad_rows
from rllib_dapo.model.packed_attention import packed_inputs
from rllib_dapo.model.packing import PackedRows, distinct_prompts, pack, pack_rows, pack_shared
from rllib_dapo.types import IntArray, TokenBatch


@dataclass(frozen=True, slots=True)
class MicrobatchLayout:
    """Which rows go through the model together, and how they are laid out.

    Attributes:
        max_tokens: the most tokens of one forward pass; a longer row goes alone.
        packing: True lays rows out end to end, False pads them.
        share_prompts: with packing, compute a prompt once for all its completions.
        pad_id: the token that fills padded rows.
    """

    max_tokens: int
    packing: bool
    share_prompts: bool
    pad_id: int

    def split(self, batch: TokenBatch) -> list[IntArray]:
        """Return the row numbers of each micro-batch; each row is in exactly one."""
        if not self.packing:
            return microbatches(batch.lengths, self.max_tokens)
        if not self.share_prompts:
            return pack(batch.lengths, self.max_tokens)
        return pack_shared(
            batch.prompt_lengths,
            batch.completion_lengths,
            distinct_prompts(batch),
            self.max_tokens,
        )

    def tensors(self, rows: TokenBatch, device: torch.device | str) -> dict[str, Any]:
        """Return what the RLModule and the loss read of one micro-batch.

        Returns:
            `model_inputs`, all arguments of the language model; int64[T] `predictors` and
            `targets` (`model.batching.PaddedRows`); float32[T] `old_logprobs`,
            `importance_weights`, `reference_logprobs` and `advantages`; int64[T]
            `sequence_ids`; and the number of sequences, `num_sequences`.
        """
        lengths = rows.completion_lengths
        layout: PackedRows | PaddedRows
        if self.packing:
            layout = pack_rows(rows, share_prompts=self.share_prompts)
            inputs = packed_inputs(layout, device)
        else:
            layout = pad_rows(rows, self.pad_id)
            inputs = _padded_inputs(layout, device)
        arrays = {
            "predictors": layout.predictors,
            "targets": layout.targets,
            "old_logprobs": rows.old_logprobs,
            "importance_weights": rows.importance_weights,
            "reference_logprobs": rows.reference_logprobs,
            "advantages": np.repeat(rows.advantages, lengths),
            "sequence_ids": rows.sequence_ids,
        }
        return {
            **{name: torch.from_numpy(array).to(device) for name, array in arrays.items()},
            "model_inputs": inputs,
            "num_sequences": len(rows),
        }


def _padded_inputs(padded: PaddedRows, device: torch.device | str) -> dict[str, Any]:
    """Return all arguments of the language model for padded rows."""
    arrays = {
        "input_ids": padded.input_ids,
        "attention_mask": padded.attention_mask,
        "position_ids": padded.position_ids,
    }
    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    return {**tensors, "use_cache": False}
