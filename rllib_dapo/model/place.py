"""Where something computes: which node, which process, which GPU."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Place:
    """A process and its device.

    Attributes:
        node: the host's name.
        process: its id; another one after a restart.
        gpu: the GPU's own id (UUID), the same whatever number a process knows it by; None
            on CPUs.
    """

    node: str
    process: int
    gpu: str | None = None


def place_of(device: torch.device | str) -> Place:
    """Where this process computes with that device."""
    device = torch.device(device)
    gpu = None
    if device.type == "cuda":
        gpu = str(torch.cuda.get_device_properties(device).uuid)
    return Place(socket.gethostname(), os.getpid(), gpu)
