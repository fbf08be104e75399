"""Which policy sampled the batch, as the learner sees it before its first update.

The engine says with which log-probabilities it sampled. The learner may take them as they
are (`old_logprobs: engine`), or put its own in their place and keep the difference as an
importance weight: the decoupled form of arXiv 2110.00641, in which the clip is centred on
the learner's present policy and the weight accounts for whoever sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rllib_dapo.losses.importance import importance_weights
from rllib_dapo.types import FloatArray, TokenBatch


def drop_unusable(batch: TokenBatch) -> TokenBatch:
    """Mask whole completions with a log-probability that is not finite.

    The engine could not have sampled such a token, so nothing is known of that answer.
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
        truncated: how many tokens of the loss had their weight truncated.
        masked: how many tokens of the loss were taken out for an extreme ratio.
        tokens: how many tokens of the loss there were before.
    """

    batch: TokenBatch
    truncated: int
    masked: int
    tokens: int


def recompute(config: Any, batch: TokenBatch, learner_logprobs: FloatArray) -> Recomputed:
    """Replace the engine's log-probabilities by the learner's.

    Args:
        config: the DAPO configuration: `importance_sampling`, `importance_cap` and
            `importance_mask_above`.
        batch: as it came from the engines; every log-probability is finite.
        learner_logprobs: float32[T], of the same tokens under the learner's weights.
    """
    made = importance_weights(
        torch.from_numpy(learner_logprobs),
        torch.from_numpy(batch.old_logprobs),
        torch.from_numpy(batch.sequence_ids),
        level=config.importance_sampling,
        cap=config.importance_cap,
        mask_above=config.importance_mask_above,
    )
    kept = np.repeat(batch.loss_mask, batch.completion_lengths)
    return Recomputed(
        batch=replace(
            batch,
            old_logprobs=learner_logprobs,
            importance_weights=made.weights.numpy(),
        ),
        truncated=int((made.truncated.numpy() & kept).sum()),
        masked=int((made.masked.numpy() & kept).sum()),
        tokens=int(kept.sum()),
    )
