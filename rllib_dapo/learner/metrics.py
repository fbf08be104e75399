"""Means over tokens, exact over micro-batches, minibatches and learners.

A mean of means would weigh a short micro-batch like a long one. Everything is kept as sums
and counts, added up over the learners, and divided once. The keys are described in
`metrics.LEARNER_METRICS`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rllib_dapo.learner.behaviour import Recomputed
from rllib_dapo.losses.policy_loss import TokenObjective
from rllib_dapo.model.collectives import Collectives
from rllib_dapo.types import TokenBatch

_TOKEN_SUMS = (
    "entropy", "token_prob_mean", "clip_share_low", "clip_share_high", "ratio_mean", "approx_kl",
    "reference_kl",
)  # fmt: skip
_SUMS = (
    *_TOKEN_SUMS, "tokens", "gap", "gap_tokens", "completions", "kept", "all_tokens",
    "recomputed", "truncated", "masked",
)  # fmt: skip
_STEP_SUMS = ("loss", "grad_norm", "updates", "updates_skipped")
# Bins of the gap's logarithm, for its quantile: 50 a decade (a bin is 4.7% wide).
_GAP_DECADES, _BINS_PER_DECADE = (-9, 3), 50


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
        bins = (_GAP_DECADES[1] - _GAP_DECADES[0]) * _BINS_PER_DECADE
        self._gap_bins = torch.zeros(bins, dtype=torch.float64, device=self._device)

    @torch.no_grad()
    def add_tokens(
        self,
        tokens: TokenObjective,
        *,
        logprobs: Tensor,
        entropy: Tensor,
        unchanged: Tensor | None,
    ) -> None:
        """Add one micro-batch; all tensors are [T].

        `unchanged` (bool, or None for none) says which tokens were sampled by the very
        weights that the learner has now: what differs there is only the arithmetic.
        """
        kept, clipped = tokens.kept, tokens.clipped
        log_ratio = tokens.log_ratio[kept]
        rows = (
            entropy[kept], logprobs[kept].exp(), clipped.clipped_low[kept],
            clipped.clipped_high[kept], clipped.ratio[kept], -log_ratio,
        )  # fmt: skip
        kl = () if tokens.kl is None else (tokens.kl[kept],)
        for name, values in zip(_TOKEN_SUMS, (*rows, *kl), strict=False):
            self._sums[name] += values.double().sum()
        self._sums["tokens"] += kept.sum()
        if unchanged is not None:
            self.add_gaps(log_ratio[unchanged[kept]].abs())

    def add_gaps(self, gaps: Tensor) -> None:
        """Add |engine - learner| log-probabilities of tokens, float[n]."""
        if not len(gaps):
            return
        gaps = gaps.double()
        self._sums["gap"] += gaps.sum()
        self._sums["gap_tokens"] += len(gaps)
        self._gap_max = torch.maximum(self._gap_max, gaps.max())
        low, high = _GAP_DECADES
        decades = gaps.log10().clamp(low, high)
        self._gap_bins += torch.histc(decades, len(self._gap_bins), low, high)

    def add_recomputed(self, recomputed: Recomputed) -> None:
        """Add how many tokens the correction for the engine's arithmetic touched."""
        self._sums["recomputed"] += recomputed.tokens
        self._sums["truncated"] += recomputed.truncated
        self._sums["masked"] += recomputed.masked

    def add_minibatch(self, minibatch: TokenBatch, kept_tokens: int) -> None:
        """Add the counts of one minibatch; `kept_tokens` of it are in the loss."""
        self._sums["kept"] += kept_tokens
        self._sums["completions"] += int(minibatch.completion_lengths.sum())
        self._sums["all_tokens"] += int(minibatch.lengths.sum())

    def add_step(self, loss: Tensor, grad_norm: Tensor, *, skipped: bool) -> None:
        """Add one optimizer step, taken or skipped."""
        if skipped:
            self._steps["updates_skipped"] += 1
            return
        self._steps["updates"] += 1
        self._steps["loss"] += float(loss)
        self._steps["grad_norm"] += float(grad_norm)

    def result(self, together: Collectives, seconds: float) -> dict[str, float]:
        """The metrics by key; a collective call.

        Args:
            together: the learners of the run.
            seconds: duration of the update.
        """
        sums = together.sum(torch.stack([self._sums[name] for name in _SUMS]))
        gap_bins = together.sum(self._gap_bins.clone())
        gap_max = together.max(self._gap_max.clone())
        # Each learner has its share of the loss, and the norm of the whole gradient.
        loss = together.sum(
            torch.tensor(self._steps["loss"], dtype=torch.float64, device=self._device)
        )
        total = dict(zip(_SUMS, sums.tolist(), strict=True))
        tokens, updates = max(total["tokens"], 1.0), max(self._steps["updates"], 1.0)
        recomputed = max(total["recomputed"], 1.0)
        return {
            **{name: total[name] / tokens for name in _TOKEN_SUMS},
            "loss": float(loss) / updates,
            "grad_norm": self._steps["grad_norm"] / updates,
            "updates": self._steps["updates"],
            "updates_skipped": self._steps["updates_skipped"],
            "engine_gap_mean": total["gap"] / max(total["gap_tokens"], 1.0),
            "engine_gap_p99": _quantile(gap_bins, 0.99),
            "engine_gap_max": float(gap_max),
            "importance_truncated_share": total["truncated"] / recomputed,
            "importance_masked_share": total["masked"] / recomputed,
            "masked_token_share": (total["completions"] - total["kept"])
            / max(total["completions"], 1.0),
            "tokens_trained": total["tokens"],
            "tokens_per_s": total["all_tokens"] / max(seconds, 1e-9),
        }


def _quantile(bins: Tensor, share: float) -> float:
    """The upper edge of the bin below which `share` of the gaps lie; 0 without any."""
    counts = bins.cumsum(0)
    if not counts[-1]:
        return 0.0
    place = int(torch.searchsorted(counts, share * counts[-1]))
    return float(10.0 ** (_GAP_DECADES[0] + (place + 1) / _BINS_PER_DECADE))
