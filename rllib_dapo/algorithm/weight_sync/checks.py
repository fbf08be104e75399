"""Checks whether engine and learner have the same weights.

There are two checks. Checksums compare, tensor by tensor, what was sent with what arrived,
before it is loaded. Parity compares the log-probabilities that learner and engine give a fixed
text. It sees what checksums cannot: a tensor that was never sent, that the engine put elsewhere,
or that it does not use.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rllib_dapo.algorithm.weight_sync.learners import Probe
from rllib_dapo.errors import TrainingError
from rllib_dapo.rollout.runner_calls import CallFailure, RunnerCalls
from rllib_dapo.settings.run import RunSettings
from rllib_dapo.types import FloatArray

FLOAT32_TOLERANCE = 1e-3
"""Mean difference allowed where both sides compute in float32, in nats. Measured on the embedded
model: 4e-7 with equal weights; with a stale output head 1.4e-3 after a step that moved each
weight by 1e-4, and 1.4e-2 after one of 1e-3."""

LOW_PRECISION_TOLERANCE = 5e-2
"""The same where one side computes in bfloat16 or float16."""


class SyncChecks:
    """When a sync is checked, and how far engine and learner may differ.

    Args:
        interval: the first two syncs are checked, then one in this many; 0 checks none.
        tolerance: mean absolute difference of log-probabilities, in nats; None takes the default
            for the number formats.
        engine_dtype: the number format in which the engine computes.
        learner_dtype: the number format in which the learner computes.
    """

    def __init__(
        self,
        interval: int,
        tolerance: float | None = None,
        *,
        engine_dtype: str = "float32",
        learner_dtype: str = "float32",
    ) -> None:
        self._interval = interval
        self._syncs = 0
        exact = engine_dtype == learner_dtype == "float32"
        default = FLOAT32_TOLERANCE if exact else LOW_PRECISION_TOLERANCE
        self.tolerance = default if tolerance is None else tolerance

    def due(self) -> bool:
        """Count one more sync, and say whether it is to be checked.

        The second one is checked like the first. An engine starts from the same files as the
        learner, so only the second check tells whether the first sync brought any weights.
        """
        self._syncs += 1
        return bool(self._interval) and (
            self._syncs == 2 or (self._syncs - 1) % self._interval == 0
        )

    def compare(
        self, calls: RunnerCalls, runners: Sequence[int], probe: Probe, version: int
    ) -> tuple[dict[int, CallFailure], float | None]:
        """Compare engines with the learner, and take those that differ out of service.

        Args:
            calls: reaches the runners.
            runners: the runners that took the weights.
            probe: what the learner makes of a fixed text.
            version: the version of the weights.

        Returns:
            Why runners must not serve, and the largest gap in nats (None without runners).
        """
        results = calls.call_engines(runners, "prompt_logprobs", probe.token_ids)
        failures, gaps = dict(results.failures), []
        for runner, logprobs in results.values.items():
            gap = self.gap(probe.logprobs, logprobs)
            gaps.append(gap)
            if complaint := self.complaint(gap, version):
                failures[runner] = CallFailure(complaint)
                calls.call_engines([runner], "weights.reject", complaint)
        return failures, max(gaps, default=None)

    def gap(self, learner: FloatArray, engine: FloatArray) -> float:
        """Mean absolute difference of two series of log-probabilities, in nats."""
        return float(np.abs(learner.astype(np.float64) - engine.astype(np.float64)).mean())

    def complaint(self, gap: float, version: int) -> str | None:
        """What is wrong with an engine that differs from the learner by this gap, or None."""
        if gap <= self.tolerance:  # False for a gap that is not a number
            return None
        return (
            f"with weights of version {version} engine and learner differ by {gap:.2g} nats on a "
            f"fixed text (sync_check_tolerance={self.tolerance:g}): the engine does not have the "
            "learner's weights, or computes otherwise. Is `model` the same for both, and does "
            "vLLM support its architecture? Compare with `weight_sync: object_store`; raise "
            "`sync_check_tolerance` if `dtype` explains the difference"
        )


def check_engine_gap(gap: float, settings: RunSettings) -> None:
    """Compare the gap between the log-probabilities of engine and learner with its limit.

    Args:
        gap: the mean absolute difference over the tokens of a batch, in nats.
        settings: the run's; `max_engine_gap` is the limit.

    Raises:
        TrainingError: the gap is larger.
    """
    limit = settings.max_engine_gap
    if limit is not None and not gap <= limit:
        raise TrainingError(
            f"engine and learner differ by {gap:.2e} nats per token on average, more than "
            f"max_engine_gap={limit:g}. Is `dtype` ({settings.dtype!r}) coarser than "
            f"`compute_dtype` ({settings.compute_dtype!r})? Does `engine_kwargs` change the "
            "model (quantization)? Does the model tie its embeddings in a way vLLM does not "
            "know? If you accept the difference, `old_logprobs: learner` with "
            "`importance_sampling: token` corrects for it."
        )
