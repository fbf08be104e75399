"""Every setting: its type, bounds, remedy, default and meaning, defined once."""

from __future__ import annotations

from rllib_dapo.settings.checks import check_settings, check_value
from rllib_dapo.settings.general import DAPOSettings
from rllib_dapo.settings.learner import LearnerSettings
from rllib_dapo.settings.names import RENAMED, setting_names
from rllib_dapo.settings.rollout import RolloutSettings
from rllib_dapo.settings.run import RLlibSettings, RLlibTrainingSettings, RunSettings

__all__ = [
    "RENAMED",
    "DAPOSettings",
    "LearnerSettings",
    "RLlibSettings",
    "RLlibTrainingSettings",
    "RolloutSettings",
    "RunSettings",
    "check_settings",
    "check_value",
    "setting_names",
]
