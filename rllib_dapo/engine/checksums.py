"""A checksum of a tensor that is the same number on every device.

    c(x) = Σ_i (1 + i mod 65521) · w_i   mod 2^64

w_i are the tensor's bytes, read as signed integers of its element size. All arithmetic is on
integers, so the order of summation does not show, and a GPU computes what a CPU does. The
factor makes elements that changed places visible; a plain sum would not.
"""

from __future__ import annotations

import torch
from torch import Tensor

_PERIOD = 65521  # a prime: rows and columns of weights have round sizes
_CHUNK = _PERIOD * 16  # elements; a whole number of periods, 8 MiB as int64
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def checksum(tensor: Tensor) -> int:
    """A 64-bit signed checksum of the values of a tensor, of any shape, format and device.

    It finds what goes wrong in transfers (missing, swapped, stale, cut, torn), not forgery.
    Shape and format are not in it.
    """
    words = tensor.detach().contiguous().view(-1).view(_INTEGERS[tensor.element_size()])
    factors = torch.arange(1, _PERIOD + 1, device=words.device).repeat(_CHUNK // _PERIOD)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for chunk in words.split(_CHUNK):
        total += torch.sum(chunk * factors[: len(chunk)])  # int64, wraps around
    return int(total)
