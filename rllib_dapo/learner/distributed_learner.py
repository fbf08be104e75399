"""RLlib's TorchLearner with learners that add up: gradients are summed, states are whole.

RLlib wraps modules in DistributedDataParallel, which averages gradients per backward pass.
A loss that already has the denominator of the global minibatch needs their sum, and
learners may have different numbers of micro-batches. So here the learners add up their
gradients themselves, once per optimizer step, or FSDP does in the backward pass where the
model is sharded.
"""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from ray.rllib.utils.numpy import convert_to_numpy

from rllib_dapo.model.collectives import Collectives, is_first
from rllib_dapo.model.sharded_state import full_optimizer_state, load_full_optimizer_state
from rllib_dapo.model.sharding import shard_causal_lm


class DistributedTorchLearner(TorchLearner):
    """One of the learners of a run, with all of the model or a slice of it (`shard_model`)."""

    def build(self) -> None:
        """Build module and optimizer."""
        super().build()
        self._together = Collectives(max(1, int(self.config.num_learners)), self.device)

    def _map_module_to_device(self, module: Any) -> None:
        """RLlib's hook, before the optimizer is made: to the device whole, or in slices."""
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
        if self._together.size == 1 or self.config.shard_model:  # sharding has summed them
            return
        for param in self._params.values():
            if param.grad is None:  # no row of this minibatch is here
                param.grad = torch.zeros_like(param)
            self._together.sum(param.grad)

    def set_state(self, state: dict[str, Any]) -> None:
        """RLlib's, but weights of every number are taken over, so that a run can go back.

        RLlib keeps its own weights if their number is larger, and takes the older optimizer.
        """
        number = state.get(WEIGHTS_SEQ_NO)
        if number is not None:
            self._weights_seq_no = number - 1
        super().set_state(state)
        if number is not None:
            self._weights_seq_no = number

    def _get_optimizer_state(self) -> dict[str, Any]:
        """RLlib's hook; of a sharded model a collective call, with the state on rank 0 only."""
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
        """RLlib's hook; a sharded model takes its part of the whole state."""
        if not self.config.shard_model:
            super()._set_optimizer_state(state)
            return
        for name, optimizer in self._named_optimizers.items():
            load_full_optimizer_state(optimizer, state[name]["state"])
