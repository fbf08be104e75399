"""vLLM's CUDA IPC transfer without a GPU: the same protocol, over a file in shared memory.

Replaced are the sender's buffer, how it is exported and opened in another process, and CUDA's
streams. Packing, pieces, the exchange of handles between learners and all calls are vLLM's.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from gloo_transport import NoStream

_files: list[str] = []  # of exported buffers


def _mapped(path: str) -> torch.Tensor:
    with open(path, "r+b") as file:
        return torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)


class TorchWithoutCuda:
    """The torch module, with buffers in shared memory where vLLM wants them on a GPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def empty(*size: Any, device: Any = None, **settings: Any) -> torch.Tensor:
        if device != "cuda":
            return torch.empty(*size, device=device, **settings)
        descriptor, path = tempfile.mkstemp(dir="/dev/shm", prefix="rllib_dapo_test_")
        os.truncate(descriptor, size[0])
        os.close(descriptor)
        buffer = _mapped(path)
        buffer.path = path
        _files.append(path)
        return buffer


def use_shared_memory(_: Any = None) -> None:
    """Replace CUDA IPC by shared memory in this process; for `foreach_learner` too."""
    from torch.multiprocessing import reductions
    from vllm.distributed.weight_transfer import packed_tensor

    def export(buffer: torch.Tensor) -> tuple[None, tuple[Any, ...]]:
        return None, (buffer.path, *[None] * 6)

    packed_tensor.torch = TorchWithoutCuda()
    packed_tensor.reduce_tensor = export
    reductions.rebuild_cuda_tensor = lambda path, *_: _mapped(path)
    torch.cuda.get_device_properties = lambda _: SimpleNamespace(uuid="GPU-shared")
    torch.cuda.current_stream = NoStream
    torch.cuda.synchronize = lambda: None
    torch.cuda.ipc_collect = lambda: None


def remove_buffers(_: Any = None) -> None:
    while _files:
        Path(_files.pop()).unlink(missing_ok=True)
