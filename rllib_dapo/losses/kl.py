"""Estimates of KL(π_θ ‖ π_ref), the distance of the policy from a reference policy."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from rllib_dapo.errors import SettingError
from rllib_dapo.losses.clipped_objective import MAX_LOG_RATIO, token_log_ratio
from rllib_dapo.settings.choices import KLEstimator


def kl_estimate(
    kind: KLEstimator, logprobs: Tensor, reference_logprobs: Tensor, token_mask: Tensor
) -> Tensor:
    """Estimate KL(π_θ ‖ π_ref) from each sampled token, in nats.

    ```
    δ = log π_ref(o_t) − log π_θ(o_t)

    k1 = −δ                       expectation KL; single values of either sign
    k2 = δ² / 2                   expectation near KL where the policies are close; ≥ 0
    k3 = exp(δ) − 1 − δ           expectation KL; ≥ 0; DeepSeekMath (GRPO), Eq. 4
    ```

    The estimators are those of joschu.net/blog/kl-approx.html; the expectation is over
    tokens sampled from π_θ itself. In a *loss*, the expectation of the gradient counts
    instead, and that is another quantity (arXiv 2506.09477). For tokens sampled from π_θ:

    ```
    E[∇k1] = E[∇ log π_θ] = 0            no regularisation: useful as a metric or in a reward
    E[∇k2] = ∇ KL(π_θ ‖ π_ref)           the gradient of the KL of each token's distribution
    E[∇k3] = ∇ KL(π_ref ‖ π_θ)           the other direction; the usual choice with GRPO
    ```

    Autograd computes exactly these gradients. After the first update of a batch the samples
    come from an older policy, and all of this holds approximately.

    In k3, δ is bounded above at `MAX_LOG_RATIO`, like the ratio of the objective, because
    exp(δ) would overflow. Beyond the bound the value is exp(20) − 21 and the gradient 0.
    (Bounding only the exponential would leave the gradient of −δ, which points *away* from
    the reference.)

    Args:
        kind: the estimator.
        logprobs: float[T], log π_θ of each completion token, with gradient.
        reference_logprobs: float[T], log π_ref, at the same temperature.
        token_mask: bool[T], False takes a token out: estimate 0, gradient 0, whatever its
            log-probabilities are (NaN included).

    Returns:
        float[T].

    Raises:
        SettingError: `kl_estimator` is unknown.
    """
    delta = -token_log_ratio(logprobs, reference_logprobs, token_mask)
    match kind:
        case "k1":
            return -delta
        case "k2":
            return 0.5 * delta.square()
        case "k3":
            bounded = delta.clamp(max=MAX_LOG_RATIO)
            return torch.expm1(bounded) - bounded
        case _:
            raise SettingError(
                f"kl_estimator={kind!r} is unknown: use one of {', '.join(get_args(KLEstimator))}",
                "kl_estimator",
            )
