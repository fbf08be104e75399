"""Weights through Ray's object store, or by reference where all is in one process.

    learner: state as arrays -> one object in shared memory -> engines of the node read it there

This works everywhere. The engines of a node share one copy; other nodes fetch one each. The
object stays until the next sync, so that a runner that was restarted gets the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
import torch

from rllib_dapo.algorithm.weight_sync.learners import (
    Probe,
    ask_first_learner,
    learner_probe,
    policy,
)
from rllib_dapo.algorithm.weight_sync.source import LearnerWeights
from rllib_dapo.algorithm.weight_sync.transport import Delivery, TransportName
from rllib_dapo.model.sharding import is_first
from rllib_dapo.rollout.engine.checksums import checksum
from rllib_dapo.rollout.runner_calls import RunnerCalls
from rllib_dapo.types import CAUSAL_LM_PREFIX


@dataclass(frozen=True, slots=True)
class WeightSet:
    """One version of the weights, as the first learner hands it out.

    Attributes:
        version: the version of the weights.
        weights: a list with one entry, the weights by name or their reference in the object
            store. Ray would replace a bare reference by the weights themselves.
        checksums: the tensors' checksums by name; None where this sync is not checked.
        probe: what the learner makes of a fixed text; None where this sync is not checked.
    """

    version: int
    weights: list[Any]
    checksums: dict[str, int] | None = None
    probe: Probe | None = None


class ObjectStoreTransport:
    """The transports `object_store` and `in_process`.

    Args:
        learner_group: RLlib's.
        in_process: learner and engine are in this process: the engine reads the learner's own
            tensors, wherever they are.
    """

    def __init__(self, learner_group: Any, *, in_process: bool = False) -> None:
        self.name: TransportName = "in_process" if in_process else "object_store"
        self._learner_group = learner_group
        self._kept: WeightSet | None = None

    def send(self, calls: RunnerCalls, runners: Sequence[int], *, with_checks: bool) -> Delivery:
        """Bring the learner's weights into the engines; see `Transport.send`."""
        self._kept = None  # first, because the store need not hold two sets
        make = partial(
            _weight_set,
            with_checks=with_checks,
            by_reference=self.name == "in_process",
            in_store=bool(calls.handles()),
        )
        weight_set = ask_first_learner(self._learner_group, make)
        if self.name == "object_store":
            self._kept = weight_set
        return _deliver(weight_set, calls, runners)

    def send_again(self, calls: RunnerCalls, runners: Sequence[int]) -> Delivery | None:
        """Bring the weights of the last `send` to runners that have lost them."""
        return None if self._kept is None else _deliver(self._kept, calls, runners)


def _deliver(weight_set: WeightSet, calls: RunnerCalls, runners: Sequence[int]) -> Delivery:
    (weights,), version = weight_set.weights, weight_set.version
    results = calls.call_engines(runners, "load_weights", weights, version, weight_set.checksums)
    return Delivery(version, results, weight_set.probe)


def _weight_set(
    learner: Any, *, with_checks: bool, by_reference: bool, in_store: bool
) -> WeightSet | None:
    """Gather the weights, which is every learner's part; only the first returns them."""
    module = policy(learner)
    weights: Mapping[str, Any]
    if by_reference:
        weights = dict(LearnerWeights(module.causal_lm, module.adapters))
    else:
        weights = module.get_state(inference_only=True)
    probe = learner_probe(learner) if with_checks else None
    if not is_first():
        return None
    checksums = None
    if with_checks:
        checksums = {
            name.removeprefix(CAUSAL_LM_PREFIX): checksum(torch.as_tensor(value))
            for name, value in weights.items()
        }
    kept = ray.put(weights) if in_store else weights
    return WeightSet(int(learner._weights_seq_no), [kept], checksums, probe)
