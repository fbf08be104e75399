"""How far the policy has left a reference policy: estimates of KL(π_θ ‖ π_ref)."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from rllib_dapo.errors import SettingError
from rllib_dapo.losses.objective import MAX_LOG_RATIO, token_log_ratio
from rllib_dapo.settings.choices import KLEstimator


def kl_estimate(
    kind: KLEstimator, logprobs: Tensor, reference_logprobs: Tensor, token_mask: Tensor
) -> Tensor:
    """One estimate per sampled token of KL(π_θ ‖ π_ref), in nats.

    ```
    δ = log π_ref(o_t) − log π_θ(o_t)

    k1 = −δ                       expectation KL; single values of either sign
    k2 = δ² / 2                   expectation near KL where the policies are close; ≥ 0
    k3 = exp(δ) − 1 − δ           expectation KL; ≥ 0; DeepSeekMath (GRPO), Eq. 4
    ```

    The estimators are those of joschu.net/blog/kl-approx.html; the expectation is over
    tokens sampled from π_θ itself. As a *loss term* what counts is the expectation of the
    gradient, which is another matter (arXiv 2506.09477). For tokens sampled from π_θ:

    ```
    E[∇k1] = E[∇ log π_θ] = 0            regularises nothing: a metric, or part of a reward
    E[∇k2] = ∇ KL(π_θ ‖ π_ref)           the gradient of the KL of each token's distribution
    E[∇k3] = ∇ KL(π_ref ‖ π_θ)           the other direction; the usual choice with GRPO
    ```

    Gradients here are those of plain autograd, so this holds as it stands. After the first
    update of a batch the samples are those of an older policy, and all of it approximate.

    δ is bounded above at `MAX_LOG_RATIO` in k3, as the ratio of the objective is: exp(δ)
    would overflow. Value exp(20) − 21 and gradient 0 beyond. (Bounding only the exponential
    would leave the gradient of −δ, which pushes *away* from the reference.)

    Args:
        kind: which estimator.
        logprobs: float[T], log π_θ of each completion token, with gradient.
        reference_logprobs: float[T], log π_ref, at the same temperature.
        token_mask: bool[T], False takes a token out: estimate 0, gradient 0, whatever its
            log-probabilities are (NaN included).

    Returns:
        float[T].

    Raises:
        SettingError: unknown `kl_estimator`.
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
