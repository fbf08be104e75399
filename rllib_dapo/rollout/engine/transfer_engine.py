"""New weights for a vLLM engine, by vLLM's own update protocol, over any transport.

vLLM re-packs parameters when it starts, so they cannot be overwritten in place. Its
layerwise reload restores each layer to the checkpoint's form, loads it and packs it again.
An engine of vLLM has one weight transfer engine, which is named when it starts, before it is
known how weights will travel. So this module registers one for all transports: it takes tensors
that are in this process or in shared memory on this node, and hands what comes over NCCL or CUDA
IPC to vLLM's own engines.

    start_weight_update -> update_weights (once, or piece by piece) -> finish_weight_update

vLLM's workers may be processes of their own. Each imports this module before it loads the
model, because `WorkerExtension` is named in `worker_extension_cls`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
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

from rllib_dapo.model.device import Place, place_of
from rllib_dapo.rollout.engine.checksums import checksum
from rllib_dapo.rollout.engine.served_weights import ReceivedTensor
from rllib_dapo.rollout.engine.shared_tensors import open_shared_tensors

BACKEND = "rllib_dapo"

REMOTE_TRANSPORTS = {"nccl": "nccl", "cuda_ipc": "ipc"}
"""Our names of the transports by which vLLM's engines receive, and vLLM's names."""


@dataclass
class TransportInitInfo(WeightTransferInitInfo):
    """Which transport to make ready, and what its own engine needs to know.

    Attributes:
        transport: a key of `REMOTE_TRANSPORTS`.
        arguments: vLLM's init info of that engine.
    """

    transport: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """The weights, or where they are; exactly one of the three is set.

    Attributes:
        weights: (name in the checkpoint, tensor) pairs in this process.
        shared: the name of a segment that `shared_tensors` made, on this node.
        remote: vLLM's update info of the transport that was made ready.
    """

    weights: list[tuple[str, Tensor]] | None = None
    shared: str | None = None
    remote: dict[str, Any] | None = None


class RecordingModel:
    """Takes a model's place where weights are loaded: records each tensor, then passes it on.

    Args:
        model: has vLLM's `load_weights`.
        with_checksums: compute checksums, which costs about as much as a copy.

    Attributes:
        received: what has been loaded so far, by name.
    """

    def __init__(self, model: Any, *, with_checksums: bool) -> None:
        self._model = model
        self._with_checksums = with_checksums
        self.received: dict[str, ReceivedTensor] = {}

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> Any:
        """Load an update, or a piece of it; vLLM's call."""
        return self._model.load_weights(self._recorded(weights))

    def _recorded(self, weights: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
        for name, tensor in weights:
            number = checksum(tensor) if self._with_checksums else None
            self.received[name] = ReceivedTensor(tuple(tensor.shape), number)
            yield name, tensor


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
        for layer in self.model.modules():  # clear what an update that failed has left behind
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
            self._recording.load_weights(open_shared_tensors(update_info.shared))
        elif self._remote is None:
            raise RuntimeError("no transport was made ready (`init_weight_transfer`)")
        else:
            remote = self._remote
            remote.model = self._recording
            remote.receive_weights(remote.parse_update_info(update_info.remote))

    def finish_weight_update(self) -> None:
        """Pack the layers again."""
        finalize_layerwise_reload(self.model, self.model_config)
        # The sender's buffer stays mapped by CUDA IPC until it is released here.
        if (importer := getattr(self._remote, "_packed_importer", None)) is not None:
            importer.close()

    def shutdown(self) -> None:
        """Leave the transport's group."""
        if self._remote is not None:
            self._remote.shutdown()
            self._remote = None


class WorkerExtension:
    """Methods that `collective_rpc` calls in every worker of vLLM."""

    device: Any
    weight_transfer_engine: Any

    def prepare_weight_update(self, with_checksums: bool) -> None:
        """Give up an update that never finished, and say whether the next one has checksums."""
        self._weight_update_active = False  # vLLM would refuse to start another one
        self.weight_transfer_engine.with_checksums = with_checksums

    def received_weights(self) -> dict[str, ReceivedTensor]:
        """What the running weight update has brought so far."""
        return dict(self.weight_transfer_engine.received)

    def worker_place(self) -> Place:
        """Where this worker computes."""
        return place_of(self.device)


# vLLM's process and its workers import this module before they need the engine.
if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, TransferEngine)
