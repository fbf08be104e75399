"""A checksum of a tensor, cheap where the tensor is.

On CPUs it is the CRC-32 of the bytes. On GPUs, so that nothing has to leave them,

    c(x) = Σ_i (1 + i mod 65521) · w_i   mod 2^64

where w_i are the tensor's bytes read as signed integers of its element size. The sum is over
integers, so it does not depend on the order of summation. The factor shows elements that changed
places, which a plain sum would not. Sender and receiver of a transfer use the same kind of device.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

_PERIOD = 65521  # a prime: rows and columns of weights have round sizes
_CHUNK = _PERIOD * 256  # elements: a whole number of periods, 128 MiB as int64
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def checksum(tensor: Tensor) -> int:
    """A checksum of a tensor's values; its shape and number format do not enter it.

    It finds what goes wrong in transfers (missing, swapped, stale or torn data), not forgery.
    """
    flat = tensor.detach().contiguous().view(-1)
    if flat.device.type == "cpu":
        return zlib.crc32(flat.view(torch.uint8).numpy().data)
    return weighted_sum(flat)


def weighted_sum(flat: Tensor) -> int:
    """The formula above for a contiguous tensor of one dimension, as a signed 64-bit integer."""
    words = flat.view(_INTEGERS[flat.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for start in range(0, len(words), _CHUNK):
        chunk = words[start : start + _CHUNK].to(torch.int64)
        factors = torch.arange(len(chunk), device=words.device) % _PERIOD + 1
        total += (chunk * factors).sum()  # wraps around
    return int(total)
