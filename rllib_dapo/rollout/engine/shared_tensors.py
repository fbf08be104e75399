"""Tensors in one POSIX shared-memory segment, for worker processes on the same node.

    owner --copies--> segment --description (names, formats, shapes, offsets)--> readers

The description is small and travels as a message; the tensors do not. The owner removes the
segment, and if it is killed before it could, Python's resource tracker does.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes; vector loads of the reader's copy


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where one tensor lies in the segment.

    Attributes:
        name: of the weight.
        dtype: its format, as in `torch.<dtype>`.
        shape: of the tensor.
        offset: bytes from the begin of the segment.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@contextmanager
def shared_tensors(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Any]]:
    """Copy tensors into a segment that exists for as long as the context does.

    Args:
        tensors: (name, tensor) pairs, on any device.

    Yields:
        What `open_shared_tensors` takes, of plain values.

    Raises:
        OSError: the node has not enough shared memory (`/dev/shm`).
    """
    pairs = list(tensors)
    places, end = [], 0
    for name, tensor in pairs:
        places.append(
            TensorPlace(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), end)
        )
        end += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
    segment = SharedMemory(create=True, size=max(end, 1))
    try:
        for place, (_, tensor) in zip(places, pairs, strict=True):
            if place.size:
                _view(segment.buf, place).copy_(tensor.detach())
        yield {"segment": segment.name, "places": [asdict(place) for place in places]}
    finally:
        segment.close()
        segment.unlink()


def open_shared_tensors(segment: str, places: Iterable[dict[str, Any]]) -> list[tuple[str, Tensor]]:
    """The tensors of a segment, without a copy and not to be written to.

    The memory stays as long as one of them lives, whatever becomes of the segment's name.

    Raises:
        FileNotFoundError: the segment is gone.
    """
    # Not by SharedMemory: its mapping must be closed by hand, after the last tensor.
    with open(f"/dev/shm/{segment}", "rb") as file:  # noqa: S108 - where Linux has them
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return [(place.name, _view(memory, place)) for place in map(_as_place, places)]


def _as_place(place: dict[str, Any]) -> TensorPlace:
    return TensorPlace(**{**place, "shape": tuple(place["shape"])})


def _view(memory: Any, place: TensorPlace) -> Tensor:
    dtype: torch.dtype = getattr(torch, place.dtype)
    if not place.size:
        return torch.empty(place.shape, dtype=dtype)
    flat = torch.frombuffer(memory, dtype=dtype, count=place.size, offset=place.offset)
    return flat.view(place.shape)
