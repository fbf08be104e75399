"""Problems that are withdrawn from a runner, finished or not, never come back from it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from scripted_engine import mixed, scripted_runner

from rllib_dapo.algorithm.dapo import DAPOConfig
from rllib_dapo.rollout.engine.base import Sampling
from rllib_dapo.rollout.sampling_job import SamplingJob
from rllib_dapo.types import Group, ProblemRef

pytestmark = pytest.mark.timeout(60)

JOB = SamplingJob(tuple(ProblemRef(p, p, p) for p in range(4)), 2, Sampling(1.0, 1.0, 64), seed=1)


@pytest.fixture
def runner():
    """A runner as an actor has it, with an engine that is stepped all the time."""
    config = DAPOConfig().environment("rllib_dapo/Arithmetic-v0")
    runner = scripted_runner(mixed)(config=config, worker_index=1, num_workers=1)
    yield runner
    runner.stop()


def collect_all(runner: Any, job: SamplingJob | None) -> list[Group]:
    reply = runner.collect(job, seconds=5.0)
    groups = list(reply.groups)
    while reply.unfinished:
        assert reply.error is reply.broken is None
        reply = runner.collect(None, seconds=5.0)
        groups += reply.groups
    return groups


def test_groups_that_were_finished_when_they_were_withdrawn_are_not_those_asked_later(runner):
    """They wait in the runner, made by weights that are gone when the problems come again."""
    runner.collect(JOB, seconds=0.0)
    pipeline = runner._running_pipeline()
    while pipeline._groups.qsize() < len(JOB.refs):
        time.sleep(0.001)
    runner.withdraw()
    runner.call_engine("load_weights", {}, 1)
    groups = collect_all(runner, JOB)
    assert sorted(group.ref.position for group in groups) == [0, 1, 2, 3]
    assert {group.weights_version for group in groups} == {1}
    assert runner.collect(None, seconds=0.1).groups == ()


def test_after_a_withdrawal_nothing_is_left_to_answer(runner):
    runner.collect(JOB, seconds=0.0)
    runner.withdraw()
    reply = runner.collect(None, seconds=0.1)
    assert (reply.groups, reply.unfinished) == ((), 0)
    assert runner.call_engine("abort_all") is None
    assert len(collect_all(runner, JOB)) == 4
