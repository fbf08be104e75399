"""A small job and how to wait for its groups."""

from __future__ import annotations

from typing import Any

from rllib_dapo.rollout.engine.base import Sampling
from rllib_dapo.rollout.sampling_job import RunnerReply, SamplingJob
from rllib_dapo.types import Group, ProblemRef

REFS = tuple(ProblemRef(position, 100 + position, 7 * position) for position in range(3))
JOB = SamplingJob(REFS, 4, Sampling(1.0, 1.0, 64), seed=11)


def collect_all(runner: Any, job: SamplingJob, seconds: float = 60.0) -> list[Group]:
    """All groups of a job, in the order of its problems."""
    reply: RunnerReply = runner.collect(job, seconds=seconds)
    groups = list(reply.groups)
    while reply.unfinished:
        assert reply.error is reply.broken is None
        reply = runner.collect(None, seconds=seconds)
        groups += reply.groups
    return sorted(groups, key=lambda group: group.ref.position)
