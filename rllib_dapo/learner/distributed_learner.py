"""RLlib's TorchLearner for several learners, whose gradients are summed.

RLlib wraps modules in DistributedDataParallel, which averages gradients in every backward
pass. Our loss has the denominator of the global minibatch already, so the gradients must be
summed, and learners may have different numbers of micro-batches. Therefore the learners add up
their gradients here, once per optimizer step. Where the model is sharded, FSDP does so in the
backward pass. States are those of the whole model, sharded or not.
"""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from ray.rllib.utils.numpy import convert_to_numpy
from torch import Tensor
from torch.distributed import ReduceOp, all_reduce

from rllib_dapo.model.sharded_state import full_optimizer_state, load_full_optimizer_state
from rllib_dapo.model.sharding import is_first, shard_causal_lm
from rllib_dapo.settings.run import RunSettings


class Collectives:
    """What the learners of a run compute together.

    With one learner every method returns what it was given. With several, each method is a
    collective call, which all learners must make.

    Args:
        size: the number of learners.
        device: the device of the tensors that they exchange.
    """

    def __init__(self, size: int, device: torch.device | str) -> None:
        self.size = size
        self._device = device

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up a tensor of the same shape over the learners, in place."""
        if self.size > 1:
            all_reduce(tensor)
        return tensor

    def max(self, tensor: Tensor) -> Tensor:
        """Take the largest value of each element, in place."""
        if self.size > 1:
            all_reduce(tensor, op=ReduceOp.MAX)
        return tensor

    def largest(self, number: int) -> int:
        """Return the largest of the learners' numbers."""
        return int(self.max(torch.tensor(number, device=self._device)).item())

    def all(self, flag: bool) -> bool:
        """Return whether the flag is True on every learner."""
        return not self.largest(int(not flag))


class DistributedTorchLearner(TorchLearner):
    """One of the learners of a run, with the whole model or a slice of it (`shard_model`)."""

    config: RunSettings

    def build(self) -> None:
        """Build module and optimizer."""
        super().build()
        self._collectives = Collectives(max(1, int(self.config.num_learners)), self.device)

    def _map_module_to_device(self, module: Any) -> None:
        """RLlib's hook before the optimizer is made: move the module, or shard it."""
        if not self.config.shard_model:
            super()._map_module_to_device(module)
            return
        shard_causal_lm(
            module[DEFAULT_MODULE_ID].causal_lm,
            torch.device(self.device),
            compute_dtype=getattr(torch, self.config.compute_dtype),
        )

    def _make_modules_ddp_if_necessary(self) -> None:
        """RLlib's hook: leave the module unwrapped."""

    def _sum_gradients_over_learners(self) -> None:
        """Add up the learners' gradients; every learner calls this once per step."""
        if self._collectives.size == 1 or self.config.shard_model:  # FSDP has summed them.
            return
        for param in self._params.values():
            if param.grad is None:  # This learner has no row of the minibatch.
                param.grad = torch.zeros_like(param)
            self._collectives.sum(param.grad)

    def set_state(self, state: dict[str, Any]) -> None:
        """Set RLlib's state, and take over the weights whatever their version.

        RLlib keeps its own weights if their version is higher, and still takes the older
        optimizer. A run must be able to go back to an earlier state.
        """
        number = state.get(WEIGHTS_SEQ_NO)
        if number is not None:
            self._weights_seq_no = number - 1
        super().set_state(state)
        if number is not None:
            self._weights_seq_no = number

    def _get_optimizer_state(self) -> dict[str, Any]:
        """RLlib's hook: the whole state of the optimizer.

        For a sharded model this is a collective call, and the state is on rank 0 only.
        """
        if not self.config.shard_model:
            return dict(super()._get_optimizer_state())
        return {
            name: {
                "module_id": self._optimizer_name_to_module[name],
                "state": convert_to_numpy(full_optimizer_state(optimizer, keep=is_first())),
            }
            for name, optimizer in self._named_optimizers.items()
        }

    def _set_optimizer_state(self, state: dict[str, Any]) -> None:
        """RLlib's hook: take over the whole state, or this learner's part of it."""
        if not self.config.shard_model:
            super()._set_optimizer_state(state)
            return
        for name, optimizer in self._named_optimizers.items():
            load_full_optimizer_state(optimizer, state[name]["state"])
