"""Whether engine and learner have the same weights: when to ask, and what to say if not.

Two checks go together. Checksums compare, tensor by tensor, what was sent with what arrived,
before it is loaded. Parity compares the log-probabilities of a fixed text by the learner and
by the engine; it sees what checksums cannot: a tensor that was never sent, that the engine
put elsewhere, or that it does not use.
"""

from __future__ import annotations

import numpy as np

from rllib_dapo.types import FloatArray

FLOAT32_TOLERANCE = 1e-3
"""Mean difference allowed where both compute in float32, nats. Measured on the embedded model:
4e-7 in order; with a stale output head 1.4e-3 after a step that moved each weight by 1e-4,
and 1.4e-2 after one of 1e-3."""

LOW_PRECISION_TOLERANCE = 5e-2
"""The same where one of them computes in bfloat16 or float16."""


class SyncChecks:
    """When a sync is checked, and how far engine and learner may differ.

    Args:
        interval: the first two syncs are checked, then every so many-th; 0: none is.
        tolerance: mean absolute difference of log-probabilities, nats; None: by the formats.
        engine_dtype: what the engine computes in.
        learner_dtype: what the learner computes in.
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
        """Count one more sync; whether it is to be checked.

        The first one and the second: an engine starts from the learner's initial weights, so
        only the second tells whether the first brought any.
        """
        self._syncs += 1
        return bool(self._interval) and (
            self._syncs == 2 or (self._syncs - 1) % self._interval == 0
        )

    def gap(self, learner: FloatArray, engine: FloatArray) -> float:
        """Mean absolute difference of two series of log-probabilities, nats."""
        return float(np.abs(learner.astype(np.float64) - engine.astype(np.float64)).mean())

    def complaint(self, gap: float, version: int) -> str | None:
        """What is wrong with an engine that differs so much from the learner, or None."""
        if gap <= self.tolerance:  # a gap that is not a number is not
            return None
        return (
            f"with weights of version {version} engine and learner differ by {gap:.2g} nats on a "
            f"fixed text (sync_check_tolerance={self.tolerance:g}): the engine does not have the "
            "learner's weights, or computes otherwise. Is `model` the same for both, and does "
            "vLLM support its architecture? Compare with `weight_sync: object_store`; raise "
            "`sync_check_tolerance` if `dtype` explains the difference"
        )
