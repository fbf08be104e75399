"""What a runner is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from rllib_dapo.engine.base import Sampling
from rllib_dapo.settings import DAPOSettings
from rllib_dapo.types import Group, ProblemRef


@dataclass(frozen=True, slots=True)
class SamplingJob:
    """Problems to be answered.

    Attributes:
        refs: which problems.
        group_size: answers per problem.
        sampling: how to sample.
        seed: of the engine's random stream for this job.
        evaluation: pose them in the evaluation environment.
    """

    refs: tuple[ProblemRef, ...]
    group_size: int
    sampling: Sampling
    seed: int
    evaluation: bool = False


@dataclass(frozen=True, slots=True)
class RunnerReply:
    """What a runner has to say after a while of work.

    Attributes:
        groups: groups finished since the last reply.
        unfinished: problems of the job still being answered.
        error: why the engine failed, or None.
    """

    groups: tuple[Group, ...]
    unfinished: int
    error: str | None = None


def training_sampling(config: DAPOSettings) -> Sampling:
    """How training samples."""
    return Sampling(config.temperature, config.top_p, config.max_response_length)


def evaluation_sampling(config: DAPOSettings) -> Sampling:
    """How evaluation samples."""
    return Sampling(
        config.evaluation_temperature, config.evaluation_top_p, config.max_response_length
    )
