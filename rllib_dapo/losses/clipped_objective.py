"""The clipped objective of a token (arXiv 2503.14476, Eqs. 8–10) and the loss.

    logprobs, old_logprobs --token_log_ratio--> log r
                        (--sequence_log_ratio--> log s, one ratio for a sequence)
    clipped_objective(log r or log s, Â).objective -> float[T]  }
    loss_weights(...) repeated by completion length  -> float[T]  } weighted_loss

How the tokens of a minibatch are averaged is in `losses.aggregation`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rllib_dapo.settings.checks import check_value

# exp() of a log-ratio above 88 is inf in float32, and 0 · inf = NaN in the backward pass of the
# branch that min() did not choose. So the log-ratio is bounded at ±20. The bound is ours, not
# the paper's; a ratio of exp(20) = 5e8 is far outside of every clip range.
MAX_LOG_RATIO = 20.0


def token_log_ratio(logprobs: Tensor, old_logprobs: Tensor, token_mask: Tensor) -> Tensor:
    """Compute the log-ratio of each token (Eq. 9 of DAPO).

    ```
    log r_{i,t} = log π_θ(o_{i,t}) − log π_old(o_{i,t})                    (nats)
    ```

    Args:
        logprobs: float[T], log π_θ of each completion token, with gradient.
        old_logprobs: float[T], log π_old, at the same temperature.
        token_mask: bool[T], False takes a token out.

    Returns:
        float[T]; masked tokens have value and gradient 0, whatever their log-probabilities
        are (NaN included).
    """
    return _masked(logprobs - old_logprobs, token_mask)


def sequence_log_ratio(
    log_ratio: Tensor, sequence_ids: Tensor, num_sequences: int, token_mask: Tensor
) -> Tensor:
    """Give all tokens of a sequence one log-ratio (GSPO, arXiv 2507.18071, Eq. 7).

    ```
    log s_i = 1/|o_i| Σ_t log r_{i,t}          s_i: geometric mean of the tokens' ratios
    ```

    Sum and |o_i| run over the kept tokens of the sequence, and so does the gradient of each
    token's value. With `sequence_mean` weights the loss is GSPO's: 1/(B·|o_i|) times |o_i|
    equal terms is 1/B · min(s_i·Â_i, clip(s_i)·Â_i)  (Eq. 5).

    All tokens of a sequence must be present.

    Args:
        log_ratio: float[T], from `token_log_ratio`, with gradient.
        sequence_ids: int64[T], which sequence (0 … num_sequences − 1) a token belongs to,
            in any order.
        num_sequences: the number of sequences, also those without a kept token.
        token_mask: bool[T], False takes a token out.

    Returns:
        float[T], log s of each token's sequence; 0 where masked.
    """
    # A float32 sum of 20k terms would depend on their order in the fifth digit.
    kept = _masked(log_ratio, token_mask).double()
    sums = kept.new_zeros(num_sequences).index_add(0, sequence_ids, kept)
    counts = kept.new_zeros(num_sequences).index_add(0, sequence_ids, token_mask.double())
    means = (sums / counts.clamp(min=1.0)).to(log_ratio.dtype)
    return _masked(means[sequence_ids], token_mask)


@dataclass(frozen=True, slots=True)
class ClippedObjective:
    """What `clipped_objective` returns; every field has the shape of `log_ratio`.

    Attributes:
        objective: J, which is to be *maximised*; it carries the gradient; 0 where masked.
        ratio: r, detached; 1 where masked.
        clipped_low: bool, whether Â < 0 and r < 1 − ε_low. The token has no gradient: it is
            unlikely enough.
        clipped_high: bool, whether Â > 0 and r > 1 + ε_high. The token has no gradient: it is
            likely enough.
        clipped_dual: bool, whether Â < 0 and r > c. The token has no gradient (dual clip).
    """

    objective: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    clipped_dual: Tensor


def clipped_objective(
    log_ratio: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
    token_mask: Tensor | None = None,
) -> ClippedObjective:
    """Compute Clip-Higher, PPO's clipped surrogate with two bounds (Eq. 10).

    ```
    r = exp(log_ratio)             of the token, or of its sequence
    J = min(r·Â, clip(r, 1 − ε_low, 1 + ε_high)·Â)
    J = max(J, c·Â)   where Â < 0      (dual clip, arXiv 1912.09729)
    ```

    Equal bounds are the symmetric clip of PPO and GRPO.

    Args:
        log_ratio: float[T], from `token_log_ratio` or `sequence_log_ratio`, with gradient.
        advantages: float[T], Â of each token's sequence.
        clip_low: ε_low, above 0 and below 1.
        clip_high: ε_high, ≥ 0.
        dual_clip: c > 1, or None for no dual clip. The paper has none; its recipe has 10.
        token_mask: bool[T], False takes a token out: its objective and gradient are 0 and it
            is never clipped, whatever its ratio and advantage are (NaN included). None keeps
            all tokens.

    Raises:
        SettingError: a bound is not what the setting of its name takes.
    """
    for name, bound in (("clip_low", clip_low), ("clip_high", clip_high), ("dual_clip", dual_clip)):
        check_value(name, bound)
    if token_mask is not None:
        # The mask comes before the arithmetic. Selecting afterwards would send 0 · NaN = NaN
        # back through exp().
        log_ratio, advantages = _masked(log_ratio, token_mask), _masked(advantages, token_mask)
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    low, high = 1.0 - clip_low, 1.0 + clip_high

    objective = torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    negative = advantages < 0
    clipped_dual = torch.zeros_like(negative)
    if dual_clip is not None:
        bounded = torch.maximum(objective, dual_clip * advantages)
        objective = torch.where(negative, bounded, objective)
        clipped_dual = negative & (ratio > dual_clip)
    return ClippedObjective(
        objective=objective,
        ratio=ratio.detach(),
        clipped_low=negative & (ratio < low),
        clipped_high=(advantages > 0) & (ratio > high),
        clipped_dual=clipped_dual,
    )


def weighted_loss(objective: Tensor, token_weights: Tensor) -> Tensor:
    """Return minus the weighted sum of the objective, a scalar to minimise.

    ```
    loss = − Σ_i Σ_t w_i · J_{i,t}
    ```

    Args:
        objective: float[T], J of each token; finite, and 0 where masked.
        token_weights: float[T], `aggregation.loss_weights` repeated over the tokens of each
            completion.
    """
    return -(token_weights * objective).sum()


def _masked(values: Tensor, token_mask: Tensor) -> Tensor:
    """Return the values, with value and gradient 0 where they are masked."""
    return torch.where(token_mask, values, torch.zeros_like(values))
