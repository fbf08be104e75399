"""What the driver knows of a weight sync: it sends the learner's weights to runners.

    learner --Transport--> engines of the runners --SyncChecks--> serve

The same holds for every transport. The learner says which version the weights have, an engine
serves them only when a complete set has arrived, and a runner that could not take them is named
and serves nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rllib_dapo.algorithm.weight_sync.checks import SyncChecks
from rllib_dapo.algorithm.weight_sync.learners import learner_places
from rllib_dapo.algorithm.weight_sync.object_store import ObjectStoreTransport
from rllib_dapo.algorithm.weight_sync.transfer import TransferTransport
from rllib_dapo.algorithm.weight_sync.transport import Delivery, Transport, choose_transport
from rllib_dapo.errors import EngineError
from rllib_dapo.rollout.runner_calls import RunnerCalls
from rllib_dapo.rollout.sampling_job import LOCAL_RUNNER
from rllib_dapo.settings.run import RunSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SyncReport:
    """How a sync went.

    Attributes:
        version: the version of the weights that were sent.
        served: the runners that serve them now.
        failed: why the other runners do not. Those refuse to sample, or are dead or silent, and
            have to be started again.
        gap: mean absolute difference of log-probabilities between learner and engine, in nats;
            the largest over the runners. None if this sync was not checked.
    """

    version: int
    served: tuple[int, ...]
    failed: dict[int, str]
    gap: float | None = None


class WeightSync:
    """Sends the learner's weights to runners.

    Args:
        transport: how the weights travel.
        checks: when and how a sync is checked.
        calls: reaches the runners.
    """

    def __init__(self, transport: Transport, checks: SyncChecks, calls: RunnerCalls) -> None:
        self.transport = transport
        self._checks = checks
        self._calls = calls

    @classmethod
    def select(cls, config: RunSettings, learner_group: Any, calls: RunnerCalls) -> WeightSync:
        """The weight sync of a run, with the transport that fits where everything computes.

        Args:
            config: how weights travel, how they are checked, and how long that may take.
            learner_group: RLlib's, already built.
            calls: reaches the runners, whose engines have started.

        Raises:
            SettingError: `weight_sync` cannot work with this placement.
            TrainingError: a learner is lost.
        """
        runners = calls.alive()
        name = choose_transport(
            config.weight_sync,
            learner_places(learner_group),
            list(calls.call_engines(runners, "places").values.values()),
            local_engine=runners == [LOCAL_RUNNER],
        )
        transport: Transport
        if name in ("in_process", "object_store"):
            transport = ObjectStoreTransport(learner_group, in_process=name == "in_process")
        else:
            # What an engine would round to half precision is sent in half precision.
            half = config.dtype if config.dtype in ("bfloat16", "float16") else None
            transport = TransferTransport(
                name,
                learner_group,
                timeout_s=config.runner_timeout_s,
                dtype=getattr(torch, half) if half else None,
            )
        checks = SyncChecks(
            config.sync_check_interval,
            config.sync_check_tolerance,
            engine_dtype=config.dtype,
            learner_dtype=config.compute_dtype,
        )
        return cls(transport, checks, calls)

    def send(self, runners: Sequence[int]) -> SyncReport:
        """Bring the learner's present weights into the runners' engines; wait until they serve.

        If all runners are lost the report names none that serves.

        Raises:
            EngineError: no engine serves the weights, and one of them refused.
            TrainingError: a learner is lost.
        """
        with_checks = self._checks.due()
        return self._report(self.transport.send(self._calls, runners, with_checks=with_checks))

    def send_again(self, runners: Sequence[int]) -> Sequence[int] | None:
        """Bring the weights of the last `send` to runners that have come back.

        Returns:
            The runners that serve them now, or None if all have to wait for the next `send`.
        """
        delivery = self.transport.send_again(self._calls, runners)
        return None if delivery is None else self._report(delivery).served

    def sleep(self, runners: Sequence[int]) -> None:
        """Have the engines give up their memory until the next `send` (`colocate`).

        Raises:
            EngineError: an engine stays awake, so there would be no room for the learner.
        """
        results = self._calls.call_engines(runners, "weights.sleep", False)
        for runner, failure in results.failures.items():
            raise EngineError(
                f"the engine of runner {runner} does not go to sleep: {failure.reason}"
            )

    def _report(self, delivery: Delivery) -> SyncReport:
        """Compare learner and engines where that is due, and say who serves."""
        version, failures = delivery.version, dict(delivery.results.failures)
        served, gap = list(delivery.results.values), None
        if delivery.probe is not None:
            differing, gap = self._checks.compare(self._calls, served, delivery.probe, version)
            failures |= differing
            served = [runner for runner in served if runner not in failures]
        refusals = [failure.reason for failure in failures.values() if not failure.lost]
        if not served and refusals:
            raise EngineError(
                f"none of {len(failures)} runners could take over weights of version {version}: "
                f"{refusals[0]}"
            )
        for runner, failure in failures.items():
            logger.error("runner %d does not serve the new weights: %s", runner, failure.reason)
        reasons = {runner: failure.reason for runner, failure in failures.items()}
        return SyncReport(version, tuple(served), reasons, gap)
