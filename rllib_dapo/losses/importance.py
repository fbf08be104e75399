"""Importance weights of tokens that the engine sampled, for the learner's distribution.

Engine and learner compute different probabilities from the same weights (other kernels,
other precision). Where the old policy of the ratio has the learner's recomputed
probabilities, the samples come from another distribution; importance weights correct for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rllib_dapo.losses.clipped_objective import MAX_LOG_RATIO
from rllib_dapo.settings.checks import check_value
from rllib_dapo.settings.choices import ImportanceSampling


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    """What `importance_weights` returns for each token.

    Attributes:
        weights: float32[T], the factor of a token's objective: above 0 and at most the cap,
            or 0 where the token is masked. They have no gradient.
        truncated: bool[T], whether the ratio was above the cap.
        masked: bool[T], whether the token leaves numerator and denominator of the loss.
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
    """Compute truncated importance weights between the engine's and the learner's policy.

    ```
    log ρ_t = log π_learner(o_t) − log π_engine(o_t)                    (nats)
    ρ = exp(log ρ_t)                 token
    ρ = exp(Σ_u log ρ_u)             sequence, over all tokens u of it
    ρ = 1                            none
    w_t = min(ρ, cap)                truncated importance sampling
    w_t = 0                          where ρ_t is outside [1/c, c]      (c = mask_above)
    ```

    Truncation ("Truncated importance sampling", J. Comput. Graph. Stat. 17 (2008)) bounds
    the variance at the price of a bias. At every level the mask is decided by the ratio of
    the single token (IcePop, arXiv 2510.18855). Masked tokens still count in their sequence's
    sum, because that is the ratio of the whole sampled sequence.

    `sequence` is the exact ratio of a whole completion; it grows or shrinks exponentially
    with the length. `token` ignores that the learner would have sampled other prefixes.

    A token whose ratio is undefined (a log-probability that is NaN or infinite) is masked
    and left out of its sequence's sum.

    Args:
        learner_logprobs: float[T], log π_learner of the sampled tokens, at the sampling
            temperature.
        engine_logprobs: float[T], log π_engine of the same tokens.
        sequence_ids: int64[T], which sequence (0, 1, …) a token belongs to; all tokens of a
            sequence must be present.
        level: the choice of ρ.
        cap: the largest weight, at least 1.
        mask_above: c > 1, or None to mask nothing.

    Raises:
        SettingError: `importance_sampling` is unknown, `importance_cap` is below 1, or
            `importance_mask_above` is not above 1.
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
    # The ratio is bounded below as well: a weight that underflows to 0 would count as masked.
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return ImportanceWeights(
        weights=ratio.clamp(max=cap).masked_fill(masked, 0.0).float(),
        truncated=(ratio > cap) & ~masked,
        masked=masked,
    )
