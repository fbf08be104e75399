"""The learners' side of a transfer by NCCL or CUDA IPC, through vLLM's trainer engines.

All learners go through the weights together; the first one sends. If sending fails, it still
goes through what is left, so that no other learner waits in a collective call for ever.
"""

from __future__ import annotations

import importlib
import math
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist

from rllib_dapo.algorithm.weight_sync.learners import Probe, learner_probe, policy
from rllib_dapo.algorithm.weight_sync.runner_client import Member, RunnerClient, is_group
from rllib_dapo.algorithm.weight_sync.source import CheckedPass, LearnerWeights
from rllib_dapo.errors import EngineError
from rllib_dapo.model.sharding import is_first

_BUFFER_BYTES = 256 * 2**20  # of a piece; vLLM's 1 GiB, twice, is much beside a learner

_END_SECONDS = 5.0  # for a call to end after its group was left

_ENGINES = {
    "nccl": ("vllm.distributed.weight_transfer.nccl_engine", "NCCLTrainerWeightTransferEngine"),
    "cuda_ipc": ("vllm.distributed.weight_transfer.ipc_engine", "IPCTrainerWeightTransferEngine"),
}
"""vLLM's trainer engine of each transport."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What the first learner says of a transfer.

    Attributes:
        version: of the weights.
        served: runners that have them.
        failures: why others do not.
        lost: of these, the runners that are dead or silent.
        probe: the learner's; None where this sync is not checked.
    """

    version: int
    served: list[int]
    failures: dict[int, str]
    lost: set[int]
    probe: Probe | None


def send_weights(
    learner: Any,
    *,
    transport: str,
    members: Mapping[int, Member],
    timeout_s: float,
    with_checks: bool,
    dtype: torch.dtype | None,
) -> Sent | None:
    """Every learner's part of one sync.

    The connection stays with the learner; it is made anew if the runners are not the same
    processes as last time.

    Returns:
        On the first learner how it went, else None.

    Raises:
        EngineError: nothing could be sent.
    """
    sender: WeightSender | None = getattr(learner, "weight_sender", None)
    if sender is None or not sender.is_for(transport, members, timeout_s):
        if sender is not None:
            sender.close()
        if learner.device.type != "cpu":
            torch.accelerator.set_device_index(learner.device.index or 0)
        sender = learner.weight_sender = WeightSender(transport, members, timeout_s)
    module = policy(learner)
    # Before anything can fail on the first learner only: it is a collective call.
    probe = learner_probe(learner) if with_checks else None
    weights = LearnerWeights(module.causal_lm, module.adapters, dtype)
    version = int(learner._weights_seq_no)
    try:
        arrived = sender.send(weights, version, with_checksums=with_checks)
    except BaseException:
        learner.weight_sender = None
        raise
    if not is_first():
        return None
    client = sender.client
    if client.failures:  # of those that are left a new group is made
        sender.close()
        learner.weight_sender = None
    return Sent(version, client.serving if arrived else [], client.failures, client.lost, probe)


class WeightSender:
    """A learner's connection to the engines of some runners.

    Args:
        transport: `nccl` or `cuda_ipc`.
        members: the runners.
        timeout_s: for a whole transfer, connecting included.
    """

    def __init__(self, transport: str, members: Mapping[int, Member], timeout_s: float) -> None:
        self.members = dict(members)
        self.client = RunnerClient(transport, members, timeout_s, self.close)
        self._transport = transport
        self.timeout_s = timeout_s
        self._engine: Any = None

    def is_for(self, transport: str, members: Mapping[int, Member], timeout_s: float) -> bool:
        """Whether it is the connection that these settings make."""
        mine = self._transport, self.members, self.timeout_s
        return mine == (transport, dict(members), timeout_s)

    def send(self, weights: LearnerWeights, version: int, *, with_checksums: bool) -> bool:
        """Send all weights once; returns when the runners serve them or have failed.

        Returns:
            False if some of the runners failed and the others waited for them in vain: they
            have no weights, and the group is no more.

        Raises:
            EngineError: it failed as a whole, or took too long; `close` was called.
        """
        one_pass = CheckedPass(weights, with_checksums=with_checksums)
        self.client.begin(version, one_pass.checksums if with_checksums else None)
        try:
            if is_first():
                self._in_time(lambda: self._send(one_pass))
            else:
                self._send(one_pass)
        except Exception as error:
            # It may be known here before the runner's death has got about.
            lost = self.client.wait_for_failure(_END_SECONDS)
            self.close()
            if is_group(self._transport) and lost:
                return False
            raise EngineError(self._failed(str(error))) from error
        finally:
            one_pass.finish()
        return True

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
        if is_group(self._transport):
            address, port = _free_address()
            workers = sum(len(member.places) for member in self.members.values())
            settings |= {
                "master_address": address,
                "master_port": port,
                "world_size": 1 + workers,
            }
        info = engine_class.init_info_cls(**settings)
        return engine_class.trainer_init(info, client=self.client, source=source)

    def _in_time(self, function: Callable[[], None]) -> None:
        """Call a function that may wait for ever for a runner that died."""
        errors: list[BaseException] = []
        device = torch.accelerator.current_device_index() if torch.cuda.is_available() else None

        def call() -> None:
            try:
                if device is not None:  # a thread begins with the first GPU
                    torch.accelerator.set_device_index(device)
                function()
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                errors.append(error)

        thread = threading.Thread(target=call, daemon=True, name="weight-sender")
        thread.start()
        thread.join(self.timeout_s)
        if thread.is_alive():
            self.close()  # ends NCCL's calls, and with them the thread
            thread.join(_END_SECONDS)
            raise TimeoutError(
                f"nothing more came within runner_timeout_s={self.timeout_s:g}; raise it if the "
                "model is large"
            )
        if errors:
            raise errors[0]

    def _failed(self, what: str) -> str:
        said = "; ".join(f"runner {r}: {why}" for r, why in sorted(self.client.failures.items()))
        return (
            f"weight_sync={self._transport!r}: runners {sorted(self.members)} did not all get the "
            f"weights: {what}. {said or 'No runner said why'}. Use `weight_sync: object_store` if "
            "this comes again"
        )

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
    """Address of this node in the cluster, and a port that is free now."""
    import ray

    address = ray.util.get_node_ip_address() if ray.is_initialized() else "127.0.0.1"
    with socket.socket() as probe:
        probe.bind(("", 0))
        return address, probe.getsockname()[1]
