"""vLLM's NCCL transfer without a GPU: the same protocol, broadcast by gloo.

Replaced are how a group is opened, how it broadcasts, and CUDA's streams, which have no meaning
here. Everything else is the code that runs with NCCL.
"""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

GROUP_TIMEOUT = timedelta(seconds=20)


class GlooGroup:
    """In the place of vLLM's `PyNcclCommunicator`."""

    def __init__(self, address: str, port: int, rank: int, size: int) -> None:
        store = dist.TCPStore(address, port, size, rank == 0, GROUP_TIMEOUT)
        self._group = dist.ProcessGroupGloo(store, rank, size, GROUP_TIMEOUT)

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = src
        self._group.broadcast([tensor], options).wait()

    def destroy(self) -> None:
        """Close its connections once no call waits in it; the others' calls end with an error.

        NCCL's abort ends the own calls at once; gloo's would end those of other groups too.
        """
        self._group = None


class NoStream:
    def synchronize(self) -> None:
        pass


def use_gloo(_: Any = None) -> None:
    """Replace NCCL by gloo in this process; for `foreach_learner` too."""
    from vllm.distributed.weight_transfer import nccl_engine, packed_tensor

    def open_worker(info: Any, parallel: Any) -> GlooGroup:
        rank = info.rank_offset + parallel.rank
        return GlooGroup(info.master_address, info.master_port, rank, info.world_size)

    def open_trainer(info: Any, rank: int = 0) -> GlooGroup:
        return GlooGroup(info.master_address, info.master_port, rank, info.world_size)

    nccl_engine.worker_init_process_group = open_worker
    nccl_engine.open_trainer_endpoint = open_trainer
    packed_tensor._get_streams = lambda _, number: tuple(NoStream() for _ in range(number))
    torch.accelerator.current_device_index = lambda: 0
    torch.cuda.current_stream = NoStream
    torch.cuda.stream = lambda _: nullcontext()


def set_buffer(_: Any, *, size: int) -> None:
    """Cut what is sent into pieces of this many bytes."""
    from rllib_dapo.algorithm.weight_sync import sender

    sender._BUFFER_BYTES = size
