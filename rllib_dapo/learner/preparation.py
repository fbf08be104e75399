"""Computes old and reference log-probabilities of a batch before the first optimizer step.

The engine reports the log-probabilities with which it sampled. The learner may take them as they
are (`old_logprobs: engine`), or replace them by its own and express the difference by an
importance weight. The latter is the decoupled form of arXiv 2110.00641: the clip is centred
on the learner's present policy, and the weight corrects for the policy that sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllib_dapo.losses.importance import importance_weights
from rllib_dapo.model.lora import adapters_off
from rllib_dapo.model.sharding import reshard
from rllib_dapo.settings.learner import LearnerSettings
from rllib_dapo.types import FloatArray, TokenBatch


def drop_unusable(batch: TokenBatch) -> TokenBatch:
    """Mask every completion that has a log-probability which is not finite.

    The engine could not have sampled such a token, so the whole completion is in doubt.
    """
    finite = np.isfinite(batch.old_logprobs)
    if finite.all():
        return batch
    mask = batch.loss_mask.copy()
    mask[batch.sequence_ids[~finite]] = False
    logprobs = np.where(finite, batch.old_logprobs, 0.0).astype(np.float32)
    return replace(batch, old_logprobs=logprobs, loss_mask=mask)


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A batch with the learner's log-probabilities in place of the engine's.

    Attributes:
        batch: the batch, with its importance weights.
        truncated: number of loss tokens whose weight was truncated.
        masked: number of loss tokens that were taken out for an extreme ratio.
        tokens: number of loss tokens before any was taken out.
    """

    batch: TokenBatch
    truncated: int
    masked: int
    tokens: int


def recompute(
    settings: LearnerSettings, batch: TokenBatch, learner_logprobs: FloatArray
) -> Recomputed:
    """Replace the engine's log-probabilities by the learner's.

    Args:
        settings: `importance_sampling`, `importance_cap` and `importance_mask_above` are read.
        batch: the batch as it came from the engines; every log-probability is finite.
        learner_logprobs: float32[T], of the same tokens under the learner's weights.
    """
    importance = importance_weights(
        torch.from_numpy(learner_logprobs),
        torch.from_numpy(batch.old_logprobs),
        torch.from_numpy(batch.sequence_ids),
        level=settings.importance_sampling,
        cap=settings.importance_cap,
        mask_above=settings.importance_mask_above,
    )
    in_loss = np.repeat(batch.loss_mask, batch.completion_lengths)
    return Recomputed(
        batch=replace(
            batch,
            old_logprobs=learner_logprobs,
            importance_weights=importance.weights.numpy(),
        ),
        truncated=int((importance.truncated.numpy() & in_loss).sum()),
        masked=int((importance.masked.numpy() & in_loss).sum()),
        tokens=int(in_loss.sum()),
    )


class ReferencePolicy:
    """The policy before training, for the KL penalty.

    With adapters, the reference is the policy without them. Otherwise the model is loaded a
    second time, frozen, and sharded like the first one where the learner shards.

    Args:
        adapted: the trained RLModule, if it has adapters; else None.
        frozen: a second RLModule with the untrained weights, if the trained one has no adapters.
    """

    def __init__(self, *, adapted: Any = None, frozen: Any = None) -> None:
        self._adapted, self._frozen = adapted, frozen
        if frozen is not None:
            frozen.requires_grad_(False)

    def forward(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return what `DAPOTorchRLModule._forward_train` does, for the untrained model."""
        if self._adapted is not None:
            with adapters_off(self._adapted.causal_lm):
                return dict(self._adapted.forward_train(batch))
        result = dict(self._frozen.forward_train(batch))
        reshard(self._frozen.causal_lm)
        return result
