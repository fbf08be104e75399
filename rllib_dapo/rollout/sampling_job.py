"""What a runner is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rllib_dapo.rollout.engine.base import Sampling, stream_seed
from rllib_dapo.settings.general import DAPOSettings
from rllib_dapo.types import Group, ProblemRef

LOCAL_RUNNER = 0
"""The number of RLlib's local runner; remote ones count from 1."""


@dataclass(frozen=True, slots=True)
class SamplingJob:
    """Problems to be answered, beside those that a runner has already.

    Attributes:
        refs: which problems; all for training or all for evaluation.
        group_size: answers per problem.
        sampling: how to sample.
        seed: the run's; with a problem's position it gives its answers' random streams.
        weights_version: the weights that are to answer; None: whichever the runner has.
    """

    refs: tuple[ProblemRef, ...]
    group_size: int
    sampling: Sampling
    seed: int
    weights_version: int | None = None


@dataclass(frozen=True, slots=True)
class RunnerReply:
    """What a runner has to say after a while of work.

    Attributes:
        groups: groups finished since the last reply.
        unfinished: problems still being answered or scored.
        steps: engine steps since the runner started; it stands still when the engine hangs.
        busy_s: seconds the engine has computed since the runner started.
        capacity: answers that the engine computes at once.
        error: what ends the run, such as a reward function that must not fail; or None.
        broken: why this runner cannot go on, while another one could; or None.
    """

    groups: tuple[Group, ...]
    unfinished: int
    steps: int = 0
    busy_s: float = 0.0
    capacity: int = 256
    error: str | None = None
    broken: str | None = None


def make_job(
    config: DAPOSettings, refs: Sequence[ProblemRef], *, seed: int, weights_version: int | None
) -> SamplingJob | None:
    """A job of the problems that are of one kind with the first; None for no problems."""
    if not refs:
        return None
    evaluation = refs[0].evaluation
    sampling = evaluation_sampling(config) if evaluation else training_sampling(config)
    size = config.evaluation_samples if evaluation else config.group_size
    own = tuple(ref for ref in refs if ref.evaluation == evaluation)
    return SamplingJob(own, size, sampling, seed, weights_version)


def answer_seed(job: SamplingJob, ref: ProblemRef) -> int:
    """Seed of the first answer to a problem; answer i has this plus i.

    It depends on the run's seed and the problem's position only. Whichever runner answers,
    beside whatever else and however often it is asked, the answers are the same.
    """
    return stream_seed(job.seed, ref.position, int(ref.evaluation))


def training_sampling(config: DAPOSettings) -> Sampling:
    """How training samples."""
    return Sampling(config.temperature, config.top_p, config.max_completion_length)


def evaluation_sampling(config: DAPOSettings) -> Sampling:
    """How evaluation samples."""
    return Sampling(
        config.evaluation_temperature, config.evaluation_top_p, config.max_completion_length
    )
