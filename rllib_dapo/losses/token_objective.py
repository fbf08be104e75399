"""The objective of each completion token of one micro-batch.

    J = w · clipped(r, Â)  −  kl_coeff · KL(π_θ ‖ π_ref)  +  entropy_coeff · H(π_θ)

Here w is the importance weight (`importance_sampling`). The mean over the tokens is not taken here,
because its weights come from the whole minibatch (`losses.aggregation`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rllib_dapo.losses.clipped_objective import (
    ClippedObjective,
    clipped_objective,
    sequence_log_ratio,
    token_log_ratio,
)
from rllib_dapo.losses.kl import kl_estimate
from rllib_dapo.settings.learner import LearnerSettings


@dataclass(frozen=True, slots=True)
class TokenObjective:
    """The objective of each completion token of one micro-batch; every tensor is [T].

    Attributes:
        objective: J, which is to be maximised; it carries the gradient.
        clipped: the clipped part of it.
        kept: bool, which tokens are in the loss.
        log_ratio: log π_θ − log π_old, detached; 0 where not kept.
        kl: estimate of KL(π_θ ‖ π_ref), detached; None without a reference policy.
    """

    objective: Tensor
    clipped: ClippedObjective
    kept: Tensor
    log_ratio: Tensor
    kl: Tensor | None


def token_objective(
    settings: LearnerSettings,
    *,
    logprobs: Tensor,
    entropy: Tensor,
    old_logprobs: Tensor,
    reference_logprobs: Tensor,
    advantages: Tensor,
    importance_weights: Tensor,
    kept: Tensor,
    sequence_ids: Tensor,
    num_sequences: int,
) -> TokenObjective:
    """Compute the objective of each completion token of one micro-batch.

    Args:
        settings: `ratio_level`, `clip_low`, `clip_high`, `dual_clip`, `kl_coeff`,
            `kl_estimator` and `entropy_coeff` are read.
        logprobs: float[T], log π_θ of each completion token, with gradient.
        entropy: float[T], the entropy of π_θ (nats), with gradient where `entropy_coeff` is
            not 0.
        old_logprobs: float[T], log π_old.
        reference_logprobs: float[T], log π_ref; read only where `kl_coeff` is not 0.
        advantages: float[T], Â of each token's sequence.
        importance_weights: float[T], w.
        kept: bool[T], False takes a token out of the loss.
        sequence_ids: int64[T], which sequence (0 … num_sequences − 1) a token belongs to.
        num_sequences: how many sequences the micro-batch has.
    """
    token_ratio = token_log_ratio(logprobs, old_logprobs, kept)
    log_ratio = token_ratio
    if settings.ratio_level == "sequence":
        log_ratio = sequence_log_ratio(token_ratio, sequence_ids, num_sequences, kept)
    clipped = clipped_objective(
        log_ratio,
        advantages,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        dual_clip=settings.dual_clip,
        token_mask=kept,
    )
    objective = clipped.objective * importance_weights
    kl = None
    if settings.kl_coeff:
        kl = kl_estimate(settings.kl_estimator, logprobs, reference_logprobs, kept)
        objective = objective - settings.kl_coeff * kl
        kl = kl.detach()
    if settings.entropy_coeff:
        objective = objective + settings.entropy_coeff * entropy
    return TokenObjective(objective, clipped, kept, token_ratio.detach(), kl)
