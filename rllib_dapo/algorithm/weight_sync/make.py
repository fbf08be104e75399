"""The weight sync of a run, from its settings and from where everything runs."""

from __future__ import annotations

from typing import Any

import torch

from rllib_dapo.algorithm.weight_sync.checks import SyncChecks
from rllib_dapo.algorithm.weight_sync.choose import choose_transport
from rllib_dapo.algorithm.weight_sync.interface import Runners, WeightSync
from rllib_dapo.algorithm.weight_sync.learners import learner_places
from rllib_dapo.algorithm.weight_sync.object_store import ObjectStoreSync
from rllib_dapo.algorithm.weight_sync.transfer import TransferSync
from rllib_dapo.rollout.sampling_job import LOCAL_RUNNER
from rllib_dapo.settings.choices import WeightSyncChoice
from rllib_dapo.settings.rollout import RolloutSettings


def make_weight_sync(
    learner_group: Any,
    runners: Runners,
    *,
    choice: WeightSyncChoice = "auto",
    check_interval: int = RolloutSettings.sync_check_interval,
    check_tolerance: float | None = None,
    engine_dtype: str = "float32",
    learner_dtype: str = "float32",
    timeout_s: float = 300.0,
) -> WeightSync:
    """The transport that fits, ready to send.

    Args:
        learner_group: RLlib's, built.
        runners: all of the run, with started engines.
        choice: the setting `weight_sync`.
        check_interval: of `SyncChecks`.
        check_tolerance: of `SyncChecks`.
        engine_dtype: what the engines compute in.
        learner_dtype: what the learners compute in.
        timeout_s: how long one runner may take.

    Raises:
        SettingError: `weight_sync` cannot work here.
        TrainingError: a learner is lost.
    """
    checks = SyncChecks(
        check_interval, check_tolerance, engine_dtype=engine_dtype, learner_dtype=learner_dtype
    )
    transport = choose_transport(
        choice,
        learner_places(learner_group),
        list(runners.call("places").values.values()),
        local_engine=runners.ids() == [LOCAL_RUNNER],
    )
    if transport == "in_process":
        return ObjectStoreSync(learner_group, checks, in_process=True)
    if transport == "object_store":
        return ObjectStoreSync(learner_group, checks)
    half = getattr(torch, engine_dtype) if engine_dtype in ("bfloat16", "float16") else None
    return TransferSync(transport, learner_group, checks, timeout_s=timeout_s, dtype=half)
