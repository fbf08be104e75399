"""How many CPU threads torch computes with, in this process.

Engine and learner may live in one process and take turns; each asks for its number when its
turn begins.
"""

from __future__ import annotations

import torch

# vLLM's CPU build replaces `torch.set_num_threads` by a function that does nothing, because it
# binds threads itself. It does so only in worker processes of its own, which ours has not.
_set_num_threads = torch.set_num_threads


def use_threads(number: int | None) -> None:
    """Compute with so many threads from now on; None leaves things as they are."""
    if number is not None and torch.get_num_threads() != number:
        _set_num_threads(number)
