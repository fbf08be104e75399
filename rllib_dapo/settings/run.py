"""The settings of a run: DAPO's own and those of RLlib that DAPO reads.

`DAPOConfig` is RLlib's `AlgorithmConfig` and a `RunSettings`. Code below the algorithm names
only `RunSettings`, or the part of it that it reads. So the type checker finds a misspelt setting,
and that code works without RLlib.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt

from rllib_dapo.settings.choices import Count, Processors, Remedy
from rllib_dapo.settings.general import DAPOSettings

_MINIBATCH = Remedy(
    "use 1 to {settings.completions_per_batch} completions (groups_per_batch="
    "{settings.groups_per_batch} times group_size={settings.group_size})"
)


@dataclass(kw_only=True, eq=False, repr=False)
class RLlibTrainingSettings:
    """RLlib's settings of `AlgorithmConfig.training` that DAPO reads, with DAPO's defaults."""

    lr: Annotated[
        float, Ge(0), Remedy("use one number of 0 or more; warm-up is `warmup_iterations`")
    ] = 3e-4
    """The learning rate after the warm-up. Paper: 1e-6."""

    minibatch_size: Annotated[int, Ge(1), _MINIBATCH] = 128
    """The number of completions per optimizer step. It must divide the completions of a batch,
    `groups_per_batch` times `group_size`. Paper: 512."""

    num_epochs: Count = 1
    """The number of passes over a batch. Paper: 1."""

    grad_clip: Annotated[
        float | None, Gt(0), Remedy("use a norm above 0, or null for no clipping")
    ] = 1.0
    """The bound on the norm of the whole gradient; None does not clip. Paper's recipe: 1.0."""

    grad_clip_by: Annotated[Literal["global_norm"], Remedy("DAPO clips by `global_norm` only")] = (
        "global_norm"
    )
    """How the gradient is clipped. DAPO has only one way: by the norm of the whole gradient."""


@dataclass(kw_only=True, eq=False, repr=False)
class RLlibSettings(RLlibTrainingSettings):
    """All of RLlib's settings that DAPO reads, with DAPO's defaults."""

    env: Any = None
    """The environment that poses the problems and scores the completions, for instance
    `rllib_dapo/Math-v0`."""

    env_config: dict[str, Any] = field(default_factory=dict)
    """The environment's own settings, for instance `{dataset: problems.jsonl}`."""

    seed: Annotated[int | None, Ge(0), Remedy("use 0 or more")] = None
    """The seed of problems, sampling and minibatches. None means 0."""

    num_env_runners: Annotated[
        int, Ge(0), Remedy("use 0 for one engine in the main process, or more")
    ] = 0
    """The number of runners, each a process of its own with an engine. With 0 there is one engine
    in the main process."""

    num_cpus_per_env_runner: Processors = 1
    """The number of CPUs that each runner reserves."""

    num_gpus_per_env_runner: Processors = 0
    """The number of GPUs that each runner reserves; fractions share a GPU."""

    num_learners: Annotated[
        int, Ge(0), Remedy("use 0 for one learner in the main process, or more")
    ] = 0
    """The number of learners, each a process of its own. With 0 there is one learner in the main
    process."""

    num_cpus_per_learner: Annotated[
        float | Literal["auto"], Remedy("use `auto`, or a number of CPUs")
    ] = "auto"
    """The number of CPUs that each learner reserves. `auto` reserves one, or none for a learner
    with a GPU."""

    num_gpus_per_learner: Processors = 0
    """The number of GPUs that each learner reserves; fractions share a GPU."""

    num_cpus_for_main_process: Processors = 1
    """The number of CPUs that the main process reserves."""

    evaluation_interval: Annotated[
        int | None, Ge(0), Remedy("use a number of iterations, or null for no evaluation")
    ] = None
    """Evaluate after every iteration whose number is a multiple of this. None or 0 never
    evaluates."""

    evaluation_duration: Annotated[
        int, Ge(1), Remedy("use a number of held-out problems, 1 or more")
    ] = 128
    """The number of held-out problems in an evaluation."""

    evaluation_config: Any = None
    """Settings that differ in evaluation, for instance `{env_config: {split: validation}}`: the
    environment, prompts, lengths, sampling (`temperature` and `top_p` are those of evaluation
    here) and rewards. Others are refused, since evaluation trains nothing and uses the engines of
    training."""


class RLlibState:
    """Attributes of RLlib's `AlgorithmConfig` that DAPO reads and that are not settings."""

    framework_str: str
    algo_class: type | None
    in_evaluation: bool = False
    learner_config_dict: dict[str, Any]
    get_evaluation_config_object: Callable[[], RunSettings | None]


@dataclass(kw_only=True, eq=False, repr=False)
class RunSettings(DAPOSettings, RLlibSettings, RLlibState):
    """All settings of a run."""

    @property
    def completions_per_batch(self) -> int:
        """The number of completions of a full batch: groups_per_batch · group_size."""
        return self.groups_per_batch * self.group_size
