"""Tensors in one POSIX shared-memory segment, for worker processes on the same node.

    owner --safetensors--> segment --its name--> readers

The segment holds a file in the safetensors format. Its name travels as a message; the tensors do
not. The owner removes the segment, and if it is killed before it could, Python's resource tracker
does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

_FOLDER = "/dev/shm"  # noqa: S108 - where Linux keeps segments


@contextmanager
def shared_tensors(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[str]:
    """Copy tensors into a segment that exists for as long as the context does.

    Args:
        tensors: (name, tensor) pairs, on any device.

    Yields:
        The name of the segment, for `open_shared_tensors`.

    Raises:
        SafetensorError: the node has not enough shared memory.
    """
    separate: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors:
        storage = tensor.untyped_storage().data_ptr()
        # The format has no shared storages: a tied tensor becomes a copy.
        separate[name] = (tensor.clone() if storage in storages else tensor).contiguous()
        storages.add(storage)
    segment = SharedMemory(create=True, size=1)  # the file replaces its content and its size
    try:
        save_file(separate, f"{_FOLDER}/{segment.name}")
        yield segment.name
    finally:
        segment.close()
        segment.unlink()


def open_shared_tensors(segment: str) -> list[tuple[str, Tensor]]:
    """Return the tensors of a segment by name, without a copy; writes stay in this process.

    The memory stays as long as one of them lives, even when the segment has been removed.

    Raises:
        FileNotFoundError: the segment is gone.
    """
    with safe_open(f"{_FOLDER}/{segment}", framework="pt") as file:
        return [(name, file.get_tensor(name)) for name in file.keys()]  # noqa: SIM118
