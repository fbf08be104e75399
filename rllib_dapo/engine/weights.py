"""New weights for a vLLM engine in the same process, by vLLM's own update protocol.

vLLM re-packs parameters when it starts, so they cannot be overwritten in place. Its
layerwise reload restores each layer to the checkpoint's form, loads it and packs it again.
We plug in as one more of its weight transfer engines: the tensors are already in this
process (the learner's own, or zero-copy views of Ray's shared memory), so the transfer is
a hand-over of references.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    get_layerwise_info,
    initialize_layerwise_reload,
)

BACKEND = "rllib_dapo_in_process"


@dataclass
class InProcessInitInfo(WeightTransferInitInfo):
    """Nothing to agree on beforehand."""


@dataclass
class InProcessUpdateInfo(WeightTransferUpdateInfo):
    """The weights themselves: (name in the checkpoint, tensor) pairs."""

    weights: list[tuple[str, torch.Tensor]]


class InProcessWeightTransferEngine(WeightTransferEngine[InProcessInitInfo, InProcessUpdateInfo]):
    """Loads tensors that are already in the engine's process."""

    init_info_cls = InProcessInitInfo
    update_info_cls = InProcessUpdateInfo

    def init_transfer_engine(self, init_info: InProcessInitInfo) -> None:
        """There is no rendezvous."""

    def start_weight_update(self) -> None:
        """Bring the layers back to the form of a checkpoint."""
        for layer in self.model.modules():  # what an update that failed has left behind
            info = get_layerwise_info(layer)
            info.loaded_weights.clear()
            info.load_numel = 0
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load the weights; overridden because the base class waits for an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: InProcessUpdateInfo) -> None:
        """Hand the tensors to the model's own loader, which copies them."""
        self.model.load_weights(update_info.weights)

    def finish_weight_update(self) -> None:
        """Pack the layers again."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing is held."""


def register() -> None:
    """Make `BACKEND` known to vLLM; calling it again does nothing."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, InProcessWeightTransferEngine)
