"""New weights for a vLLM engine, by vLLM's own update protocol, over any transport.

vLLM re-packs parameters when it starts, so they cannot be overwritten in place. Its
layerwise reload restores each layer to the checkpoint's form, loads it and packs it again.
We plug in as one more of its weight transfer engines, since vLLM knows one per engine, to be
named when it starts. Ours takes tensors that are in this process or in shared memory on this
node, and hands what comes over NCCL or CUDA IPC to vLLM's own engines.

    start_weight_update -> update_weights (once, or piece by piece) -> finish_weight_update
"""

from __future__ import annotations

from dataclasses import dataclass, field
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

from rllib_dapo.rollout.engine.received import ReceivedTensor, RecordingModel
from rllib_dapo.rollout.engine.shared_tensors import open_shared_tensors

BACKEND = "rllib_dapo"

REMOTE_TRANSPORTS = {"nccl": "nccl", "cuda_ipc": "ipc"}
"""Our names of transports that vLLM's engines receive by, and vLLM's."""


@dataclass
class TransportInitInfo(WeightTransferInitInfo):
    """Which transport to make ready, and what its own engine wants to know.

    Attributes:
        transport: a key of `REMOTE_TRANSPORTS`.
        arguments: vLLM's init info of that engine.
    """

    transport: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """The weights, or where they are; one of the three.

    Attributes:
        weights: (name in the checkpoint, tensor) pairs in this process.
        shared: what `shared_tensors` made, on this node.
        remote: vLLM's update info of the transport that was made ready.
    """

    weights: list[tuple[str, torch.Tensor]] | None = None
    shared: dict[str, Any] | None = None
    remote: dict[str, Any] | None = None


class TransferEngine(WeightTransferEngine[TransportInitInfo, UpdateInfo]):
    """vLLM's side of an update, in each of its worker processes."""

    init_info_cls = TransportInitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.with_checksums = False
        self._recording = RecordingModel(self.model, with_checksums=False)
        self._remote: WeightTransferEngine[Any, Any] | None = None

    @property
    def received(self) -> dict[str, ReceivedTensor]:
        """What the running (or the last) update has brought, by name."""
        return self._recording.received

    def init_transfer_engine(self, init_info: TransportInitInfo) -> None:
        """Make a transport ready; with NCCL this waits for all others of the group."""
        self.shutdown()
        name = REMOTE_TRANSPORTS[init_info.transport]
        engine_class = WeightTransferEngineFactory._registry[name]()
        remote = engine_class(self.config, self.vllm_config, self.device, self.model)
        remote.init_transfer_engine(remote.parse_init_info(init_info.arguments))
        self._remote = remote

    def start_weight_update(self) -> None:
        """Bring the layers back to the form of a checkpoint."""
        for layer in self.model.modules():  # what an update that failed has left behind
            info = get_layerwise_info(layer)
            info.loaded_weights.clear()
            info.load_numel = 0
        self._recording = RecordingModel(self.model, with_checksums=self.with_checksums)
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load the weights; overridden because the base class waits for an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Hand the tensors to the model's own loader, which copies them.

        Raises:
            RuntimeError: the transport was not made ready.
        """
        if update_info.weights is not None:
            self._recording.load_weights(update_info.weights)
        elif update_info.shared is not None:
            self._recording.load_weights(open_shared_tensors(**update_info.shared))
        elif self._remote is None:
            raise RuntimeError("no transport was made ready (`init_weight_transfer`)")
        else:
            remote = self._remote
            remote.model = self._recording
            remote.receive_weights(remote.parse_update_info(update_info.remote))

    def finish_weight_update(self) -> None:
        """Pack the layers again."""
        finalize_layerwise_reload(self.model, self.model_config)
        # The sender's buffer is mapped by CUDA IPC until it is let go here.
        if (importer := getattr(self._remote, "_packed_importer", None)) is not None:
            importer.close()

    def shutdown(self) -> None:
        """Leave the transport's group."""
        if self._remote is not None:
            self._remote.shutdown()
            self._remote = None


def register() -> None:
    """Make `BACKEND` known to vLLM in this process; calling it again does nothing."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, TransferEngine)
