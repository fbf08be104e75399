"""The device and the number of CPU threads with which this process computes."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import torch

# vLLM's CPU build replaces `torch.set_num_threads` by a function that does nothing, because it
# binds the threads of its own worker processes. Engine and learner are not such processes, so
# they keep torch's function.
_set_num_threads = torch.set_num_threads


@dataclass(frozen=True, slots=True)
class Place:
    """A process and its device.

    Attributes:
        node: the host's name.
        process: its id, which changes with a restart.
        gpu: the GPU's UUID, which is the same in every process, unlike its index; None on
            CPUs.
    """

    node: str
    process: int
    gpu: str | None = None


def place_of(device: torch.device | str) -> Place:
    """Return where this process computes with a device."""
    device = torch.device(device)
    gpu = None
    if device.type == "cuda":
        gpu = str(torch.cuda.get_device_properties(device).uuid)
    return Place(socket.gethostname(), os.getpid(), gpu)


def use_threads(number: int | None) -> None:
    """Let torch compute with this number of CPU threads from now on.

    Engine and learner may live in one process and take turns; each calls this when its turn
    begins. None leaves the number as it is.
    """
    if number is not None and torch.get_num_threads() != number:
        _set_num_threads(number)
