"""The settings of a run: DAPO's own and those of RLlib that DAPO reads.

`DAPOConfig` is RLlib's `AlgorithmConfig` and a `RunSettings`. Code below the algorithm names
this class only, so that a misspelt setting is found by the type checker without RLlib.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rllib_dapo.settings.general import DAPOSettings


class RunSettings(DAPOSettings):
    """DAPO's settings and the attributes of RLlib's `AlgorithmConfig` that DAPO reads."""

    env: Any
    env_config: dict[str, Any]
    seed: int | None
    framework_str: str
    algo_class: type | None
    in_evaluation: bool

    lr: float
    minibatch_size: int
    num_epochs: int
    grad_clip: float | None
    grad_clip_by: str

    num_env_runners: int
    num_cpus_per_env_runner: float
    num_gpus_per_env_runner: float
    num_learners: int
    num_cpus_per_learner: Any
    num_gpus_per_learner: float
    num_cpus_for_main_process: float
    learner_config_dict: dict[str, Any]

    evaluation_interval: int | None
    evaluation_duration: int | str
    evaluation_config: Any
    get_evaluation_config_object: Callable[[], RunSettings | None]

    @property
    def completions_per_batch(self) -> int:
        """Completions of a full batch: groups_per_batch · group_size."""
        return self.groups_per_batch * self.group_size
