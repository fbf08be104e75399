"""Metrics of an update, as means over tokens.

The means do not depend on the split into micro-batches and learners. A mean of means would weigh
a short micro-batch like a long one; instead, sums and counts are collected, added up over the
learners, and divided once. `rllib_dapo.metrics.LEARNER_METRICS` describes the keys.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rllib_dapo.learner.distributed_learner import Collectives
from rllib_dapo.learner.preparation import Recomputed
from rllib_dapo.losses.token_objective import TokenObjective
from rllib_dapo.types import BoolArray, TokenBatch

_TOKEN_SUMS = (
    "entropy", "token_prob_mean", "clip_share_low", "clip_share_high", "ratio_mean", "approx_kl",
    "reference_kl",
)  # fmt: skip
_SUMS = (
    *_TOKEN_SUMS, "tokens", "gap", "gap_tokens", "completions", "kept", "all_tokens",
    "recomputed", "truncated", "masked",
)  # fmt: skip
_STEP_SUMS = ("loss", "grad_norm", "updates", "updates_skipped", "updates_empty")
# The quantile of the gap comes from a histogram of its logarithm: with 50 bins a decade, a bin
# is 4.7% wide.
_GAP_DECADES, _BINS_PER_DECADE = (-9, 3), 50


class UpdateMetrics:
    """Collects the metrics of one call of `Learner.update`.

    Args:
        device: the device of the tensors that are added.
    """

    def __init__(self, device: torch.device | str) -> None:
        options: Any = {"dtype": torch.float64, "device": device}
        self._sums = {name: torch.zeros((), **options) for name in _SUMS}
        self._steps = dict.fromkeys(_STEP_SUMS, 0.0)
        self._gap_max = torch.zeros((), **options)
        bins = (_GAP_DECADES[1] - _GAP_DECADES[0]) * _BINS_PER_DECADE
        self._gap_bins = torch.zeros(bins, **options)

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

        `unchanged` (bool, or None for no token) says which tokens were sampled by the weights
        that the learner has now, so that a difference there is due to arithmetic alone.
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
        """Add the gaps |log π_engine − log π_learner| of tokens, float[n], nats."""
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
        """Add the numbers of tokens that importance weights truncated or masked."""
        self._sums["recomputed"] += recomputed.tokens
        self._sums["truncated"] += recomputed.truncated
        self._sums["masked"] += recomputed.masked

    def add_minibatch(self, minibatch: TokenBatch, kept_tokens: int) -> None:
        """Add the counts of one minibatch, of which `kept_tokens` tokens are in the loss."""
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

    def add_empty_step(self) -> None:
        """Add a minibatch without a token in the loss, which takes no step."""
        self._steps["updates_empty"] += 1

    def result(self, collectives: Collectives, seconds: float) -> dict[str, float]:
        """Return the metrics by key; a collective call.

        Args:
            collectives: the learners of the run.
            seconds: duration of the update.
        """
        sums = collectives.sum(torch.stack([self._sums[name] for name in _SUMS]))
        gap_bins = collectives.sum(self._gap_bins.clone())
        gap_max = collectives.max(self._gap_max.clone())
        # Each learner has its share of the loss, but the norm of the whole gradient.
        loss = collectives.sum(torch.full_like(self._gap_max, self._steps["loss"]))
        total = dict(zip(_SUMS, sums.tolist(), strict=True))
        tokens, updates = max(total["tokens"], 1.0), max(self._steps["updates"], 1.0)
        recomputed = max(total["recomputed"], 1.0)
        return {
            **{name: total[name] / tokens for name in _TOKEN_SUMS},
            "loss": float(loss) / updates,
            "grad_norm": self._steps["grad_norm"] / updates,
            "updates": self._steps["updates"],
            "updates_skipped": self._steps["updates_skipped"],
            "updates_empty": self._steps["updates_empty"],
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
    """Return the upper edge of the bin that holds the quantile; 0 without any gap."""
    counts = bins.cumsum(0)
    if not counts[-1]:
        return 0.0
    number = int(torch.searchsorted(counts, share * counts[-1]))
    return float(10.0 ** (_GAP_DECADES[0] + (number + 1) / _BINS_PER_DECADE))


@dataclass(slots=True)
class UpdateState:
    """What one call of `update` passes from one of RLlib's hooks to the next.

    Attributes:
        version: the version of the weights with which the update begins. The engines sampled
            with the same version unless a group is stale.
        metrics: collects the metrics of this update.
        steps: the number of optimizer steps taken or skipped so far.
        started: the time at which the update began, by `time.perf_counter`, in seconds.
    """

    version: int
    metrics: UpdateMetrics
    steps: int = 0
    started: float = field(default_factory=time.perf_counter)

    def on_policy(self, batch: TokenBatch) -> BoolArray:
        """Return bool[T], True for the completion tokens that this version sampled."""
        same: BoolArray = batch.weights_versions == self.version
        return same
