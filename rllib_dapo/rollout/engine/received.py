"""What an engine has received so far of a weight update, tensor by tensor.

A worker notes name, shape and (when asked to) checksum of every tensor before it loads it.
Whoever drives the update compares these notes with what was sent, before the new weights serve.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rllib_dapo.rollout.engine.checksums import checksum


@dataclass(frozen=True, slots=True)
class ReceivedTensor:
    """One tensor as it arrived.

    Attributes:
        shape: of the tensor.
        checksum: see `engine.checksums`; None where it was not asked for.
    """

    shape: tuple[int, ...]
    checksum: int | None


class RecordingModel:
    """Stands in for a model where weights are loaded: notes each tensor, then passes it on.

    Args:
        model: has vLLM's `load_weights`.
        with_checksums: compute them; about as expensive as a copy.
    """

    def __init__(self, model: Any, *, with_checksums: bool) -> None:
        self._model = model
        self._with_checksums = with_checksums
        self.received: dict[str, ReceivedTensor] = {}

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> Any:
        """Load an update, or a piece of it; vLLM's call."""
        return self._model.load_weights(self._noted(weights))

    def _noted(self, weights: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
        for name, tensor in weights:
            number = checksum(tensor) if self._with_checksums else None
            self.received[name] = ReceivedTensor(tuple(tensor.shape), number)
            yield name, tensor
