"""The DAPO objective and how its tokens are averaged (arXiv 2503.14476, Eqs. 8–12).

    loss = − Σ_i Σ_t  w_i · objective_{i,t}

The objective knows nothing of batches; the weights w_i know nothing of probabilities.
The weights come from the *whole* minibatch (all micro-batches of all learners), so the
losses and gradients of any split add up to those of the whole.

    loss_weights(...)  --repeat by response length-->  float[tokens]
    decoupled_clip_objective(...).objective         -> float[tokens]   } weighted_loss
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rllib_dapo.errors import SettingError
from rllib_dapo.settings import Aggregation
from rllib_dapo.types import BoolArray, IntArray

# exp() of a log-ratio beyond 88 is inf in float32, and 0 · inf = NaN in the backward pass
# of the branch that min() did not choose. The recipe bounds it at ±20 as well: a ratio of
# 5e8, of which nothing is left to learn.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class ClippedObjective:
    """What `decoupled_clip_objective` returns; every field has the shape of `logprobs`.

    Attributes:
        objective: to be *maximised*; carries the gradient; 0 where masked.
        ratio: r, detached; 1 where masked.
        clipped_low: bool, Â < 0 and r < 1 − ε_low: no gradient, made unlikely enough.
        clipped_high: bool, Â > 0 and r > 1 + ε_high: no gradient, made likely enough.
        clipped_dual: bool, Â < 0 and r > c: no gradient, the dual clip.
    """

    objective: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    clipped_dual: Tensor


def decoupled_clip_objective(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
    token_mask: Tensor | None = None,
) -> ClippedObjective:
    """Clip-Higher: PPO's clipped surrogate with two bounds (Eq. 10; r is in Eq. 9).

    ```
    r = exp(log π_θ − log π_old)
    J = min(r·Â, clip(r, 1 − ε_low, 1 + ε_high)·Â)
    J = max(J, c·Â)   where Â < 0      (dual clip, arXiv 1912.09729)
    ```

    Args:
        logprobs: float[T], log π_θ of each response token, with gradient.
        old_logprobs: float[T], log π_old, at the same temperature.
        advantages: float[T], Â of each token's sequence.
        clip_low: ε_low, in [0, 1].
        clip_high: ε_high, ≥ 0.
        dual_clip: c > 1, or None for no dual clip. The paper has none; its recipe has 10.
        token_mask: bool[T], False takes a token out: objective 0, gradient 0, whatever
            its log-probabilities are (NaN included). See `finite_token_mask`.

    Returns:
        The objective per token, and which tokens were clipped.
    """
    _check_clip(clip_low, clip_high, dual_clip)
    keep = torch.ones_like(logprobs, dtype=torch.bool) if token_mask is None else token_mask
    # Masked values are replaced *before* the arithmetic: selecting afterwards only would
    # send 0 · NaN = NaN back through exp().
    zero = torch.zeros((), dtype=logprobs.dtype, device=logprobs.device)
    log_ratio = torch.where(keep, logprobs, zero) - torch.where(keep, old_logprobs, zero)
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    low, high = 1.0 - clip_low, 1.0 + clip_high

    objective = torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    negative = advantages < 0
    clipped_dual = torch.zeros_like(keep)
    if dual_clip is not None:
        bounded = torch.maximum(objective, dual_clip * advantages)
        objective = torch.where(negative, bounded, objective)
        clipped_dual = negative & (ratio > dual_clip)
    return ClippedObjective(
        objective=torch.where(keep, objective, zero),
        ratio=ratio.detach(),
        clipped_low=negative & (ratio < low),
        clipped_high=(advantages > 0) & (ratio > high),
        clipped_dual=clipped_dual,
    )


def finite_token_mask(old_logprobs: Tensor) -> Tensor:
    """bool[T]: tokens whose sampling log-probability can be used.

    NaN or −inf says that the engine could not have sampled the token it sampled, so no
    ratio is defined. Such tokens are to be masked (`token_mask`), counted (`(~mask).sum()`)
    and taken out of the response lengths that `loss_weights` sees.
    """
    return torch.isfinite(old_logprobs)


def loss_normalizer(
    aggregation: Aggregation, response_lengths: IntArray, loss_mask: BoolArray
) -> int:
    """What the loss is divided by: kept tokens, or kept sequences with a token.

    It is a plain count, so the counts of micro-batches and of learners add up to that of
    the whole minibatch. Masked responses and empty ones are in no count.
    """
    if aggregation not in ("token_mean", "sequence_mean"):
        raise SettingError(
            f"loss_aggregation={aggregation!r} is unknown: use 'token_mean' (DAPO) or "
            "'sequence_mean' (GRPO)",
            "loss_aggregation",
        )
    kept = np.where(loss_mask, response_lengths, 0)
    return int(kept.sum() if aggregation == "token_mean" else np.count_nonzero(kept))


def loss_weights(
    aggregation: Aggregation,
    response_lengths: IntArray,
    loss_mask: BoolArray,
    *,
    normalizer: int | None = None,
) -> npt.NDArray[np.float64]:
    """The weight w_i of every token of sequence i in the loss.

    ```
    token_mean      w_i = 1 / Σ_j |o_j|       DAPO, Eq. 12: every token weighs the same
    sequence_mean   w_i = 1 / (B · |o_i|)     GRPO, Eq. 5: every sequence weighs the same
    ```

    Sums and B run over the responses of the whole minibatch that are kept
    (`loss_mask`) and have a token; any other response has weight 0. So B is the number
    of sequences that are really averaged: masking a response gives the same loss as
    never having sampled it.

    Eq. 12 is written for one group. Like the recipe we take the mean over all tokens of
    the minibatch, not the mean over its groups.

    Args:
        aggregation: which weights.
        response_lengths: int64[B], |o_i|: the tokens of each response that count (where
            single tokens are masked, those that are left).
        loss_mask: bool[B], False for responses taken out of the loss.
        normalizer: the sum of `loss_normalizer` over all parts, where the rows given are
            only a part of the minibatch. None: they are all of it.

    Returns:
        float64[B]. All 0 (no NaN) if nothing is kept.
    """
    own = loss_normalizer(aggregation, response_lengths, loss_mask)
    total = own if normalizer is None else normalizer
    kept = np.where(loss_mask, response_lengths, 0).astype(np.float64)
    per_token = np.ones_like(kept) if aggregation == "token_mean" else kept
    weights = np.zeros_like(kept)
    np.divide(1.0, per_token * total, out=weights, where=kept > 0)
    return weights


def weighted_loss(objective: Tensor, token_weights: Tensor) -> Tensor:
    """− Σ w·J over the tokens given: a scalar to minimise.

    Args:
        objective: float[T], what is maximised, per token.
        token_weights: float[T], `loss_weights` repeated over each response's tokens.
    """
    return -(token_weights * objective).sum()


def _check_clip(clip_low: float, clip_high: float, dual_clip: float | None) -> None:
    """Refuse bounds that do not hold the ratio 1 of an unchanged policy."""
    if not 0.0 <= clip_low <= 1.0:
        raise SettingError(
            f"clip_low={clip_low}: must be from 0 to 1, as a ratio is never below 0; the paper "
            "uses 0.2",
            "clip_low",
        )
    if not clip_high >= 0.0:
        raise SettingError(
            f"clip_high={clip_high}: must be 0 or more; the paper uses 0.28", "clip_high"
        )
    if dual_clip is not None and not dual_clip > 1.0:
        raise SettingError(
            f"dual_clip={dual_clip}: must be above 1 (the ratio of an unchanged policy), or None "
            "for no dual clip; the recipe uses 10",
            "dual_clip",
        )
