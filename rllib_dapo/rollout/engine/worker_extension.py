"""What we add to vLLM's workers, which may be processes of their own.

vLLM imports this module in every worker before it loads the model (`worker_extension_cls`), so
it also makes our weight transfer engine known there.
"""

from __future__ import annotations

from typing import Any

from rllib_dapo.model.device import Place, place_of
from rllib_dapo.rollout.engine import transfer_engine
from rllib_dapo.rollout.engine.received import ReceivedTensor

transfer_engine.register()


class WorkerExtension:
    """Methods for `collective_rpc`."""

    device: Any
    weight_transfer_engine: Any

    def prepare_weight_update(self, with_checksums: bool) -> None:
        """Give up an update that was begun and never finished, and say what the next one notes."""
        self._weight_update_active = False  # vLLM would refuse to start another one
        self.weight_transfer_engine.with_checksums = with_checksums

    def received_weights(self) -> dict[str, ReceivedTensor]:
        """What the running weight update has brought so far."""
        return dict(self.weight_transfer_engine.received)

    def worker_place(self) -> Place:
        """Where this worker computes."""
        return place_of(self.device)
