"""What one micro-batch contributes to the objective: the settings applied to the formulas.

    J = w · clipped(r, Â)  −  kl_coeff · KL(π_θ ‖ π_ref)  +  entropy_coeff · H(π_θ)

per token; w corrects for who sampled (`importance_sampling`). The mean over tokens is not
taken here: `ops.aggregation` makes its weights from the whole minibatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray.rllib.core.columns import Columns
from torch import Tensor

from rllib_dapo.losses.kl import kl_estimate
from rllib_dapo.losses.objective import (
    ClippedObjective,
    clipped_objective,
    sequence_log_ratio,
    token_log_ratio,
)


@dataclass(frozen=True, slots=True)
class TokenObjective:
    """Per completion token of one micro-batch; every tensor is [T].

    Attributes:
        objective: to be maximised; carries the gradient.
        clipped: the clipped part of it.
        kept: bool, which tokens count.
        log_ratio: log π_θ − log π_old, detached; 0 where not kept.
        kl: estimate of KL(π_θ ‖ π_ref), detached; None without a reference policy.
    """

    objective: Tensor
    clipped: ClippedObjective
    kept: Tensor
    log_ratio: Tensor
    kl: Tensor | None


def token_objective(
    config: Any, batch: Mapping[str, Any], fwd_out: Mapping[str, Tensor]
) -> TokenObjective:
    """Apply the settings of the objective to one micro-batch.

    Args:
        config: the DAPO configuration.
        batch: what `microbatch.MicrobatchLayout.tensors` made, with `token_weights`.
        fwd_out: what `DAPOTorchRLModule._forward_train` returned.
    """
    logprobs = fwd_out[Columns.ACTION_LOGP]
    kept = batch["token_weights"] > 0
    token_ratio = token_log_ratio(logprobs, batch["old_logprobs"], kept)
    log_ratio = token_ratio
    if config.ratio_level == "sequence":
        log_ratio = sequence_log_ratio(
            token_ratio, batch["sequence_ids"], batch["num_sequences"], kept
        )
    clipped = clipped_objective(
        log_ratio,
        batch["advantages"],
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
        token_mask=kept,
    )
    objective = clipped.objective * batch["importance_weights"]
    kl = None
    if config.kl_coeff:
        kl = kl_estimate(config.kl_estimator, logprobs, batch["reference_logprobs"], kept)
        objective = objective - config.kl_coeff * kl
        kl = kl.detach()
    if config.entropy_coeff:
        objective = objective + config.entropy_coeff * fwd_out["entropy"]
    return TokenObjective(objective, clipped, kept, token_ratio.detach(), kl)
