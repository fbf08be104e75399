"""What the learners of one run do together: sum, agree, keep in step.

With one learner every function returns what it was given. With several each is a
collective call: all of them must make it, or none.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ReduceOp, all_reduce, get_rank, is_initialized


def is_first() -> bool:
    """True in the first learner, which reads and keeps what is to be there only once."""
    return not is_initialized() or get_rank() == 0


class Collectives:
    """The learners of one run.

    Args:
        size: how many there are.
        device: where the tensors live that they exchange.
    """

    def __init__(self, size: int, device: torch.device | str) -> None:
        self.size = size
        self._device = device

    def sum(self, tensor: Tensor) -> Tensor:
        """Add a tensor up, in place; the shapes must agree."""
        if self.size > 1:
            all_reduce(tensor)
        return tensor

    def max(self, tensor: Tensor) -> Tensor:
        """The largest of each element, in place."""
        if self.size > 1:
            all_reduce(tensor, op=ReduceOp.MAX)
        return tensor

    def largest(self, number: int) -> int:
        """The largest of the learners' numbers."""
        return int(self.max(torch.tensor(number, device=self._device)).item())

    def all(self, flag: bool) -> bool:
        """True if every learner says True."""
        return not self.largest(int(not flag))
