"""Which weights the runners have: new ones for all, the present ones for who comes back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from rllib_dapo.algorithm.weight_sync.interface import SyncReport, WeightSync
from rllib_dapo.algorithm.weight_sync.make import make_weight_sync
from rllib_dapo.algorithm.weight_sync.runners import RunnerEngines
from rllib_dapo.errors import EngineError
from rllib_dapo.settings.run import RunSettings

logger = logging.getLogger(__name__)


class RunnerWeights:
    """Sends the learner's weights to runners.

    Args:
        config: how they go, how they are checked, how long that may take.
        env_runner_group: RLlib's.
        learner_group: RLlib's.
    """

    def __init__(self, config: RunSettings, env_runner_group: Any, learner_group: Any) -> None:
        self._config = config
        self._group = env_runner_group
        self._learner_group = learner_group
        self._sync: WeightSync | None = None

    def send(self, runners: Sequence[int]) -> SyncReport:
        """Bring the learner's present weights into the runners' engines.

        Raises:
            EngineError: no engine could take them.
            TrainingError: a learner is lost.
            SettingError: `weight_sync` cannot work with this placement.
        """
        engines = self._engines(runners)
        if self._sync is None:  # where everything is, is known only now
            config = self._config
            self._sync = make_weight_sync(
                self._learner_group,
                engines,
                choice=config.weight_sync,
                check_interval=config.sync_check_interval,
                check_tolerance=config.sync_check_tolerance,
                engine_dtype=config.dtype,
                learner_dtype=config.compute_dtype,
                timeout_s=config.runner_timeout_s,
            )
        return self._reported(self._sync.send(engines))

    def send_again(self, runners: Sequence[int]) -> Sequence[int] | None:
        """Bring the weights of the last `send` to runners that have come back.

        Returns:
            Those that serve them now. None: all of them have to wait for the next `send`.
        """
        report = None if self._sync is None else self._sync.send_again(self._engines(runners))
        return None if report is None else self._reported(report).served

    def sleep(self, runners: Sequence[int]) -> None:
        """Have the engines give up their memory until the next `send` (`colocate`).

        Raises:
            EngineError: one of them does not: there would be no room for the learner.
        """
        for runner, reason in self._engines(runners).call("weights.sleep", False).failures.items():
            raise EngineError(f"the engine of runner {runner} does not go to sleep: {reason}")

    def _engines(self, runners: Sequence[int]) -> RunnerEngines:
        return RunnerEngines(self._group, self._config.runner_timeout_s, runners)

    def _reported(self, report: SyncReport) -> SyncReport:
        for runner, reason in report.failed.items():
            logger.error("runner %d does not serve the new weights: %s", runner, reason)
        return report
