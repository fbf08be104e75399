"""Weights through Ray's object store, or by reference where all is in one process.

    learner: state as arrays -> one object in shared memory -> engines of the node read it there

Works everywhere. A node's engines share one copy; other nodes fetch one each. The object
stays until the next sync, so that a runner that was restarted can be given the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
import torch

from rllib_dapo.algorithm.weight_sync.checks import SyncChecks
from rllib_dapo.algorithm.weight_sync.confirm import confirm
from rllib_dapo.algorithm.weight_sync.interface import Runners, SyncReport
from rllib_dapo.algorithm.weight_sync.learners import Probe, ask_learners, learner_probe, policy
from rllib_dapo.algorithm.weight_sync.source import LearnerWeights
from rllib_dapo.model.sharding import is_first
from rllib_dapo.rollout.engine.checksums import checksum
from rllib_dapo.types import CAUSAL_LM_PREFIX


@dataclass(frozen=True, slots=True)
class Offer:
    """What the first learner offers to the engines.

    Attributes:
        version: of the weights.
        weights: in a list of one (Ray would fetch a bare reference): the weights by name, or
            where in the object store they are.
        checksums: by name; None where this sync is not checked.
        probe: likewise.
    """

    version: int
    weights: list[Any]
    checksums: dict[str, int] | None = None
    probe: Probe | None = None


class ObjectStoreSync:
    """The transports `object_store` and `in_process`.

    Args:
        learner_group: RLlib's.
        checks: when and how closely a sync is checked.
        in_process: learner and engine are in this process: the engine reads the learner's own
            tensors, wherever they are.
    """

    def __init__(self, learner_group: Any, checks: SyncChecks, *, in_process: bool = False) -> None:
        self.transport = "in_process" if in_process else "object_store"
        self._learner_group = learner_group
        self._checks = checks
        self._last: Offer | None = None

    def send(self, runners: Runners) -> SyncReport:
        """Bring the learner's weights into the engines and wait until they serve.

        Raises:
            EngineError: no runner could take them.
            TrainingError: a learner is lost.
        """
        self._last = None  # the store need not hold two
        make = partial(
            _offer,
            with_checks=self._checks.due(),
            by_reference=self.transport == "in_process",
            in_store=bool(runners.handles()),
        )
        offer = next(o for o in ask_learners(self._learner_group, make) if o is not None)
        if self.transport == "object_store":
            self._last = offer
        return self._deliver(offer, runners)

    def send_again(self, runners: Runners) -> SyncReport | None:
        """Bring the weights of the last `send` to runners that have lost them."""
        return None if self._last is None else self._deliver(self._last, runners)

    def _deliver(self, offer: Offer, runners: Runners) -> SyncReport:
        (weights,) = offer.weights
        loaded = runners.call("load_weights", weights, offer.version, offer.checksums)
        return confirm(runners, loaded, offer.version, offer.probe, self._checks)


def _offer(learner: Any, *, with_checks: bool, by_reference: bool, in_store: bool) -> Offer | None:
    """Every learner's part; what the first of them offers."""
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
    return Offer(int(learner._weights_seq_no), [kept], checksums, probe)
