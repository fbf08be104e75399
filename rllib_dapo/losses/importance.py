"""What the engine sampled, weighed as if the learner had sampled it.

The engine and the learner compute different probabilities from the same weights (other
kernels, other precision). Where the learner's recomputed ones are the old policy of the
ratio, the samples are those of another distribution; importance weights correct for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rllib_dapo.losses.objective import MAX_LOG_RATIO
from rllib_dapo.settings.checks import check_value
from rllib_dapo.settings.choices import ImportanceSampling


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    """What `importance_weights` returns, per token.

    Attributes:
        weights: float32[T], what a token's objective is multiplied by; from above 0 to the
            cap, 0 where masked and only there. Without gradient.
        truncated: bool[T], the ratio was above the cap.
        masked: bool[T], the token leaves the loss, numerator and denominator alike.
    """

    weights: Tensor
    truncated: Tensor
    masked: Tensor


@torch.no_grad()
def importance_weights(
    learner_logprobs: Tensor,
    engine_logprobs: Tensor,
    sequence_ids: Tensor,
    *,
    level: ImportanceSampling,
    cap: float = 2.0,
    mask_above: float | None = None,
) -> ImportanceWeights:
    """Truncated importance sampling between the engine's and the learner's distribution.

    ```
    log ρ_t = log π_learner(o_t) − log π_engine(o_t)                    (nats)
    ρ = exp(log ρ_t)                 token
    ρ = exp(Σ_u log ρ_u)             sequence, over all tokens u of it
    ρ = 1                            none
    w_t = min(ρ, cap)                truncated importance sampling
    w_t = 0                          where ρ_t is outside [1/c, c]      (c = mask_above)
    ```

    Truncation: "Truncated importance sampling", J. Comput. Graph. Stat. 17 (2008); it bounds
    the variance at the price of a bias. The mask looks at the ratio of the single token, at
    every level (IcePop, arXiv 2510.18855); masked tokens still count in their sequence's
    sum, which is the ratio of what was sampled.

    `sequence` is the exact ratio of a whole answer, and grows or shrinks exponentially with
    its length; `token` neglects that other prefixes would have been sampled.

    A token whose ratio is undefined (a log-probability that is NaN or infinite) is masked
    and left out of its sequence's sum.

    Args:
        learner_logprobs: float[T], of the sampled tokens, at the sampling temperature.
        engine_logprobs: float[T], what they were sampled with.
        sequence_ids: int64[T], which sequence (0, 1, …) a token belongs to; each sequence
            is here whole.
        level: which ratio.
        cap: the largest weight, at least 1.
        mask_above: c > 1, or None to mask nothing.

    Returns:
        Weights, and which tokens were truncated and masked.

    Raises:
        SettingError: unknown `importance_sampling`, `importance_cap` below 1, or
            `importance_mask_above` not above 1.
    """
    check_value("importance_sampling", level)
    check_value("importance_cap", cap)
    check_value("importance_mask_above", mask_above)
    log_ratio = learner_logprobs.double() - engine_logprobs.double()
    masked = ~log_ratio.isfinite()
    log_ratio = log_ratio.masked_fill(masked, 0.0)
    if mask_above is not None:
        masked = masked | (log_ratio.abs() > math.log(mask_above))
    if level == "sequence":
        log_ratio = torch.bincount(sequence_ids, weights=log_ratio)[sequence_ids]
    elif level == "none":
        log_ratio = torch.zeros_like(log_ratio)
    # Bounded below as well: a weight that underflows to 0 would count as masked.
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return ImportanceWeights(
        weights=ratio.clamp(max=cap).masked_fill(masked, 0.0).float(),
        truncated=(ratio > cap) & ~masked,
        masked=masked,
    )
