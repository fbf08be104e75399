"""The untrained model, for the KL penalty."""

from __future__ import annotations

from typing import Any

from ray.rllib.core import DEFAULT_MODULE_ID
from torch import Tensor

from rllib_dapo.model.lora import adapters_off
from rllib_dapo.model.sharding import reshard


class ReferencePolicy:
    """What the policy was before training.

    With adapters it is the policy without them; otherwise the model is loaded a second
    time and kept frozen (sharded like the first where the learner shards).

    Args:
        learner: the learner, built.
    """

    def __init__(self, learner: Any) -> None:
        self._adapted: Any = None
        if learner.config.lora_rank is not None:
            self._adapted = learner.module[DEFAULT_MODULE_ID]
            return
        self._frozen = learner._make_module()[DEFAULT_MODULE_ID]
        self._frozen.requires_grad_(False)

    def forward(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        """What `DAPOTorchRLModule._forward_train` returns, of the untrained model."""
        if self._adapted is None:
            result = dict(self._frozen.forward_train(batch))
            reshard(self._frozen.causal_lm)
            return result
        with adapters_off(self._adapted.causal_lm):
            return dict(self._adapted.forward_train(batch))
