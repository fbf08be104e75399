"""The learners' side of a transfer by NCCL or CUDA IPC, through vLLM's trainer engines.

All learners go through the weights together; the first one sends. If sending fails, it still
goes through the rest of the weights, because the other learners wait for it in collective calls.
"""

from __future__ import annotations

import importlib
import math
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import distributed as dist

from rllib_dapo.algorithm.weight_sync.learners import learner_probe, policy
from rllib_dapo.algorithm.weight_sync.source import CheckedPass, LearnerWeights
from rllib_dapo.algorithm.weight_sync.transfer_client import Receiver, TransferClient
from rllib_dapo.algorithm.weight_sync.transport import Delivery
from rllib_dapo.errors import EngineError
from rllib_dapo.model.sharding import is_first

_BUFFER_BYTES = 256 * 2**20  # of one piece; vLLM's 1 GiB, twice, is much beside a learner

_END_SECONDS = 5.0  # how long a call may take to end after its group was left

_ENGINES = {
    "nccl": ("vllm.distributed.weight_transfer.nccl_engine", "NCCLTrainerWeightTransferEngine"),
    "cuda_ipc": ("vllm.distributed.weight_transfer.ipc_engine", "IPCTrainerWeightTransferEngine"),
}
"""vLLM's trainer engine of each transport."""


def connect_learner(
    learner: Any, *, transport: str, receivers: Mapping[int, Receiver], timeout_s: float
) -> None:
    """Give a learner a `WeightSender` to these runners, as its attribute `weight_sender`.

    The sender before is closed. All learners of a run must do this at the same time.
    """
    if learner.weight_sender is not None:
        learner.weight_sender.close()
    if learner.device.type != "cpu":
        torch.accelerator.set_device_index(learner.device.index or 0)
    learner.weight_sender = WeightSender(transport, receivers, timeout_s)


def send_weights(learner: Any, *, with_checks: bool, dtype: torch.dtype | None) -> Delivery | None:
    """Every learner's part of one sync, by its `weight_sender`.

    Returns:
        What came of it, from the first learner; None from the others.

    Raises:
        EngineError: the transfer failed as a whole; the senders have to be made anew.
    """
    sender: WeightSender = learner.weight_sender
    module, version = policy(learner), int(learner._weights_seq_no)
    # A collective call, so it comes before anything that can fail on the first learner only.
    probe = learner_probe(learner) if with_checks else None
    sender.send(
        LearnerWeights(module.causal_lm, module.adapters, dtype),
        version,
        with_checksums=with_checks,
    )
    return Delivery(version, sender.client.results, probe) if is_first() else None


class WeightSender:
    """A learner's connection to the engines of some runners; the first `send` opens it.

    Args:
        transport: `nccl` or `cuda_ipc`.
        receivers: the runners by number.
        timeout_s: how long a whole transfer may take, connecting included, in seconds.

    Attributes:
        client: calls the runners, and knows which of them have failed.
    """

    def __init__(self, transport: str, receivers: Mapping[int, Receiver], timeout_s: float) -> None:
        self.client = TransferClient(transport, receivers, timeout_s, self.close)
        self._receivers = dict(receivers)
        self._transport = transport
        self._timeout_s = timeout_s
        self._engine: Any = None

    def send(self, weights: LearnerWeights, version: int, *, with_checksums: bool) -> None:
        """Send all weights once; returns when every runner serves them or has failed.

        Raises:
            EngineError: the transfer failed as a whole, or took too long; `close` was called.
        """
        one_pass = CheckedPass(weights, with_checksums=with_checksums)
        self.client.begin(version, one_pass.checksums if with_checksums else None)
        try:
            if is_first():
                self._in_time(lambda: self._send(one_pass))
            else:
                self._send(one_pass)
        except Exception as error:
            self.close()
            raise EngineError(
                f"weight_sync={self._transport!r}: runners {sorted(self._receivers)} did not all "
                f"get the weights: {error}. Use `weight_sync: object_store` if this comes again"
            ) from error
        finally:
            one_pass.finish()

    def _send(self, one_pass: CheckedPass) -> None:
        if self._engine is None:
            self._engine = self._connect(one_pass)
        self._engine.source = one_pass
        self._engine.send_weights()

    def _connect(self, source: CheckedPass) -> Any:
        module, name = _ENGINES[self._transport]
        engine_class = getattr(importlib.import_module(module), name)
        rank = dist.get_rank() if dist.is_initialized() else 0
        settings: dict[str, Any] = {
            "rank": rank,
            "packed": True,
            "packed_buffer_size_bytes": _buffer_bytes(source),
        }
        if self._transport == "nccl":
            address, port = _free_address()
            workers = sum(len(receiver.places) for receiver in self._receivers.values())
            settings |= {
                "master_address": address,
                "master_port": port,
                "world_size": 1 + workers,
            }
        info = engine_class.init_info_cls(**settings)
        return engine_class.trainer_init(info, client=self.client, source=source)

    def _in_time(self, function: Callable[[], None]) -> None:
        """Call a function that might otherwise wait for ever for a runner that died."""
        errors: list[BaseException] = []
        device = torch.accelerator.current_device_index() if torch.cuda.is_available() else None

        def call() -> None:
            try:
                if device is not None:  # a new thread starts on the first GPU
                    torch.accelerator.set_device_index(device)
                function()
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                errors.append(error)

        thread = threading.Thread(target=call, daemon=True, name="weight-sender")
        thread.start()
        thread.join(self._timeout_s)
        if thread.is_alive():
            self.close()  # ends NCCL's calls, and with them the thread
            thread.join(_END_SECONDS)
            raise TimeoutError(
                f"nothing more came within runner_timeout_s={self._timeout_s:g}; raise it if the "
                "model is large"
            )
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Leave the group; a call that waits in it ends."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()


def _buffer_bytes(source: CheckedPass) -> int:
    """Bytes of one piece; none is smaller than the largest tensor."""
    sizes = (math.prod(meta.shape) * meta.dtype.itemsize for meta in source.metadata())
    return max(_BUFFER_BYTES, *sizes)


def _free_address() -> tuple[str, int]:
    """The address of this node in the cluster, and a port that is free now."""
    import ray

    address = ray.util.get_node_ip_address() if ray.is_initialized() else "127.0.0.1"
    with socket.socket() as probe:
        probe.bind(("", 0))
        return address, probe.getsockname()[1]
