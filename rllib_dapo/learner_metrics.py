"""Means over tokens, exact over micro-batches, minibatches and learners.

A mean of means would weigh a short micro-batch like a long one. Everything is kept as sums
and counts, added up over the learners, and divided once. The keys are described in
`metrics.LEARNER_METRICS`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rllib_dapo.ops.loss import ClippedObjective
from rllib_dapo.types import TokenBatch

_TOKEN_SUMS = (
    "entropy", "token_prob_mean", "clip_share_low", "clip_share_high", "ratio_mean", "approx_kl",
)  # fmt: skip
_SUMS = (*_TOKEN_SUMS, "tokens", "gap", "gap_tokens", "responses", "masked", "all_tokens")
_STEP_SUMS = ("loss", "grad_norm", "updates", "updates_skipped")


class UpdateMetrics:
    """Collects the numbers of one call of `Learner.update`."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = device
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._sums = {
            name: torch.zeros((), dtype=torch.float64, device=self._device) for name in _SUMS
        }
        self._steps = dict.fromkeys(_STEP_SUMS, 0.0)
        self._gap_max = torch.zeros((), dtype=torch.float64, device=self._device)

    @torch.no_grad()
    def add_tokens(
        self,
        *,
        clipped: ClippedObjective,
        logprobs: Tensor,
        old_logprobs: Tensor,
        entropy: Tensor,
        kept: Tensor,
        unchanged: Tensor | None,
    ) -> None:
        """Add one micro-batch; all tensors are [T], `kept` says which tokens count.

        `unchanged` (bool, or None for none) says which tokens were sampled by the very
        weights that the learner has now: what differs there is only the arithmetic.
        """
        log_ratio = (logprobs - old_logprobs)[kept]
        rows = (
            entropy[kept], logprobs[kept].exp(), clipped.clipped_low[kept],
            clipped.clipped_high[kept], clipped.ratio[kept], -log_ratio,
        )  # fmt: skip
        for name, values in zip(_TOKEN_SUMS, rows, strict=True):
            self._sums[name] += values.double().sum()
        self._sums["tokens"] += kept.sum()
        if unchanged is not None and bool((kept & unchanged).any()):
            gap = log_ratio[unchanged[kept]].abs().double()
            self._sums["gap"] += gap.sum()
            self._sums["gap_tokens"] += len(gap)
            self._gap_max = torch.maximum(self._gap_max, gap.max())

    def add_minibatch(self, minibatch: TokenBatch, usable: TokenBatch) -> None:
        """Add the counts of one minibatch, as it came and as it was used."""
        total = int(minibatch.response_lengths.sum())
        self._sums["masked"] += total - usable.num_loss_tokens
        self._sums["responses"] += total
        self._sums["all_tokens"] += int(minibatch.lengths.sum())

    def add_step(self, loss: Tensor, grad_norm: Tensor, *, skipped: bool) -> None:
        """Add one optimizer step, taken or skipped."""
        if skipped:
            self._steps["updates_skipped"] += 1
            return
        self._steps["updates"] += 1
        self._steps["loss"] += float(loss)
        self._steps["grad_norm"] += float(grad_norm)

    def result(self, world_size: int, seconds: float) -> dict[str, float]:
        """The metrics by key.

        Args:
            world_size: learners; with more than one this is a collective call.
            seconds: duration of the update.
        """
        sums = torch.stack([self._sums[name] for name in _SUMS])
        loss = torch.tensor(self._steps["loss"], dtype=torch.float64, device=self._device)
        gap_max = self._gap_max.clone()
        if world_size > 1:
            torch.distributed.all_reduce(sums)
            torch.distributed.all_reduce(loss)  # each learner has its share of the loss
            torch.distributed.all_reduce(gap_max, op=torch.distributed.ReduceOp.MAX)
        total = dict(zip(_SUMS, sums.tolist(), strict=True))
        tokens, updates = max(total["tokens"], 1.0), max(self._steps["updates"], 1.0)
        return {
            **{name: total[name] / tokens for name in _TOKEN_SUMS},
            "loss": float(loss) / updates,
            "grad_norm": self._steps["grad_norm"] / updates,
            "updates": self._steps["updates"],
            "updates_skipped": self._steps["updates_skipped"],
            "engine_gap_mean": total["gap"] / max(total["gap_tokens"], 1.0),
            "engine_gap_max": float(gap_max),
            "masked_token_share": total["masked"] / max(total["responses"], 1.0),
            "tokens_trained": total["tokens"],
            "tokens_per_s": total["all_tokens"] / max(seconds, 1e-9),
        }
