"""Log-probabilities and entropies of tokens, without the [tokens, vocabulary] matrix.

    hidden [T, H], lm_head [V, H]  ->  log π(target) [T], entropy [T]

With V = 152k one micro-batch of 16k tokens would need 10 GB of float32 logits, and as
much again for each step of the softmax. Here they exist for `chunk_tokens` tokens at a
time, in the forward and (computed again) in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from rllib_dapo.settings.checks import check_value

# In numbers: 128 MiB in float32. Large enough that matrix products are efficient, and that the
# logits of a small vocabulary fit whole and need not be computed twice.
_LOGITS_AT_ONCE = 32 * 2**20


def tokens_at_once(vocabulary: int) -> int:
    """A good `chunk_tokens` for a vocabulary of this size."""
    return max(1, _LOGITS_AT_ONCE // vocabulary)


def token_logprobs_and_entropy(
    hidden: Tensor,
    lm_head_weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk_tokens: int = 512,
    with_entropy_grad: bool = False,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute log π(target) and the entropy of π for each token.

    ```
    z = (W·h + bias) / temperature
    log π(v) = z_v − log Σ_u exp(z_u)
    entropy = − Σ_v π(v)·log π(v)          (nats)
    ```

    The product W·h is made in the precision of `hidden`, as in the engine; all that
    follows is float32 (float64 where `hidden` is).

    Args:
        hidden: [T, H], the hidden states that predict the targets.
        lm_head_weight: [V, H], W.
        targets: int64[T], token ids.
        temperature: of the sampling distribution, above 0. The same as the engine's, or
            the ratio π_θ/π_old is not 1 before the first update.
        chunk_tokens: tokens whose logits exist at once, above 0. Up to that many are
            kept for the backward pass, more are computed again.
        with_entropy_grad: False returns an entropy without gradient, for metrics only.
        bias: [V] or None.

    Returns:
        (log-probabilities [T], entropies [T]).
    """
    check_value("temperature", temperature)
    weight = lm_head_weight.to(hidden.dtype)
    logprobs, entropy = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, temperature, chunk_tokens, with_entropy_grad
    )
    return logprobs, entropy


def _log_softmax(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """[t, V] log-probabilities of one chunk."""
    # Autocast would compute the forward pass in half precision, and the backward pass,
    # which runs outside of it, in full.
    with torch.autocast(hidden.device.type, enabled=False):
        logits = linear(hidden, weight)
    logits = logits.to(torch.promote_types(hidden.dtype, torch.float32))
    if bias is not None:
        logits += bias
    if temperature != 1.0:
        logits /= temperature
    return torch.log_softmax(logits, dim=-1)


class _TokenLogprobs(torch.autograd.Function):
    """The chunk loop with its derivative; z are the logits after temperature.

    ```
    ∂ log π(y) / ∂z_v = [v = y] − π(v)
    ∂ entropy  / ∂z_v = − π(v)·(log π(v) + entropy)
    ```
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk_tokens: int,
        with_entropy_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        """Fill in both results chunk by chunk."""
        logprobs = hidden.new_empty(
            len(targets), dtype=torch.promote_types(hidden.dtype, torch.float32)
        )
        entropy = torch.empty_like(logprobs)
        table: Tensor | None = None
        for start in range(0, len(targets), chunk_tokens):
            rows = slice(start, start + chunk_tokens)
            table = _log_softmax(hidden[rows], weight, bias, temperature)
            logprobs[rows] = table.gather(1, targets[rows, None])[:, 0]
            entropy[rows] = -torch.linalg.vecdot(table.exp(), table)
        # A single chunk is within the memory bound anyway: keep it, save a matrix product.
        kept = table if len(targets) <= chunk_tokens and any(ctx.needs_input_grad) else None
        ctx.save_for_backward(hidden, weight, bias, targets, entropy, kept)
        ctx.settings = temperature, chunk_tokens, with_entropy_grad
        if not with_entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor, grad_entropy: Tensor) -> tuple[Any, ...]:
        """Add up the chunks' gradients of hidden states, weight and bias."""
        hidden, weight, bias, targets, entropy, kept = ctx.saved_tensors
        temperature, chunk_tokens, with_entropy_grad = ctx.settings
        wanted = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if wanted[0] else None
        # A sum over hundreds of chunks: bfloat16 would round it each time.
        sum_dtype = torch.promote_types(weight.dtype, torch.float32)
        grad_weight = torch.zeros_like(weight, dtype=sum_dtype) if wanted[1] else None
        grad_bias = torch.zeros_like(bias) if wanted[2] else None
        for start in range(0, len(targets), chunk_tokens):
            rows = slice(start, start + chunk_tokens)
            table = (
                kept if kept is not None else _log_softmax(hidden[rows], weight, bias, temperature)
            )
            pull = grad_logprobs[rows, None]
            grad = table.exp()
            if with_entropy_grad:
                grad *= (table + entropy[rows, None]).mul_(grad_entropy[rows, None]).add_(pull)
                grad.neg_()
            else:
                grad *= -pull
            grad.scatter_add_(1, targets[rows, None], pull)
            if temperature != 1.0:
                grad /= temperature
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            grad = grad.to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = grad @ weight
            if grad_weight is not None and grad.dtype == sum_dtype:
                grad_weight.addmm_(grad.t(), hidden[rows])
            elif grad_weight is not None:
                grad_weight += grad.t() @ hidden[rows]
        grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None
