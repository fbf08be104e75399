"""What a runner is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from rllib_dapo.engine.base import Sampling, stream_seed
from rllib_dapo.settings import DAPOSettings
from rllib_dapo.types import Group, ProblemRef


@dataclass(frozen=True, slots=True)
class SamplingJob:
    """Problems to be answered.

    Attributes:
        refs: which problems.
        group_size: answers per problem.
        sampling: how to sample.
        seed: the run's; with a problem's position it gives its answers' random streams.
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


def answer_seed(job: SamplingJob, ref: ProblemRef) -> int:
    """Seed of the first answer to a problem; answer i has this plus i.

    It depends on the run's seed and the problem's position only. Whichever runner answers,
    beside whatever else and however often it is asked, the answers are the same.
    """
    return stream_seed(job.seed, ref.position, int(job.evaluation))


def training_sampling(config: DAPOSettings) -> Sampling:
    """How training samples."""
    return Sampling(config.temperature, config.top_p, config.max_response_length)


def evaluation_sampling(config: DAPOSettings) -> Sampling:
    """How evaluation samples."""
    return Sampling(
        config.evaluation_temperature, config.evaluation_top_p, config.max_response_length
    )
