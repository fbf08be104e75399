"""The messages between the pool and a runner: sampling jobs, and replies with groups."""

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
    """Problems for a runner to sample, in addition to those it has already.

    Attributes:
        refs: the problems; all for training, or all for evaluation.
        group_size: G, completions per problem.
        sampling: the sampling parameters.
        seed: the seed of the run; together with a problem's position it determines the random
            streams of the problem's completions.
        weights_version: the version of the weights to sample with; None takes the runner's
            present one.
    """

    refs: tuple[ProblemRef, ...]
    group_size: int
    sampling: Sampling
    seed: int
    weights_version: int | None = None


@dataclass(frozen=True, slots=True)
class RunnerReply:
    """What a runner reports after a while of work.

    Attributes:
        groups: groups finished since the last reply.
        unfinished: the number of problems whose completions are being sampled or scored.
        steps: engine steps since the runner started; the number stands still if the engine hangs.
        busy_s: seconds the engine has computed since the runner started.
        capacity: completions that the engine computes at once.
        error: a reason to end the run, such as a reward function that must not fail; or None.
        broken: why this runner cannot go on, although another one could; or None.
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
    """A job with the problems of the same kind as the first; None if there are no problems."""
    if not refs:
        return None
    evaluation = refs[0].evaluation
    sampling = evaluation_sampling(config) if evaluation else training_sampling(config)
    size = config.evaluation_samples if evaluation else config.group_size
    own = tuple(ref for ref in refs if ref.evaluation == evaluation)
    return SamplingJob(own, size, sampling, seed, weights_version)


def completion_seed(job: SamplingJob, ref: ProblemRef) -> int:
    """Seed of the first completion of a problem; completion i has this seed plus i.

    It depends on the run's seed and the problem's position only. The completions are therefore
    the same whichever runner samples them, together with whatever other problems, and however
    often the problem is sampled.
    """
    return stream_seed(job.seed, ref.position, int(ref.evaluation))


def training_sampling(config: DAPOSettings) -> Sampling:
    """Sampling parameters of training."""
    return Sampling(config.temperature, config.top_p, config.max_completion_length)


def evaluation_sampling(config: DAPOSettings) -> Sampling:
    """Sampling parameters of evaluation."""
    return Sampling(
        config.evaluation_temperature, config.evaluation_top_p, config.max_completion_length
    )
