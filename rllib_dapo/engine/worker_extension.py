"""What we add to vLLM's workers, which may be processes of their own.

vLLM imports this module in every worker before it loads the model (`worker_extension_cls`), so
it also makes our weight transfer engine known there.
"""

from __future__ import annotations

from typing import Any

from rllib_dapo.engine import weights
from rllib_dapo.engine.place import Place, place_of
from rllib_dapo.engine.received import ReceivedTensor

weights.register()


class WorkerExtension:
    """Methods for `collective_rpc`."""

    device: Any
    weight_transfer_engine: Any

    def record_checksums(self, wanted: bool) -> None:
        """Whether the next weight updates are checksummed."""
        self.weight_transfer_engine.with_checksums = wanted

    def received_weights(self) -> dict[str, ReceivedTensor]:
        """What the running weight update has brought so far."""
        return dict(self.weight_transfer_engine.received)

    def worker_place(self) -> Place:
        """Where this worker computes."""
        return place_of(self.device)
