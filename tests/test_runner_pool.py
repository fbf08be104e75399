"""Many runners as one: who is asked what, and what happens when one of them dies.

Control flow only: the runners and RLlib's group of them are small stand-ins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from strategies import make_group

from rllib_dapo.engine.base import Sampling
from rllib_dapo.errors import EngineError
from rllib_dapo.runner_pool import RunnerPool
from rllib_dapo.sampling_job import RunnerReply, SamplingJob
from rllib_dapo.types import Group, ProblemRef

pytestmark = pytest.mark.timeout(20)  # a pool that waits for a dead runner waits for ever


class Runner:
    """Finishes one problem per call; may die or report an error after some calls."""

    def __init__(self, *, dies_after: int | None = None, fails_after: int | None = None) -> None:
        self.jobs: list[SamplingJob] = []
        self.alive = True
        self._dies_after, self._fails_after = dies_after, fails_after
        self._calls = 0
        self._left: list[ProblemRef] = []

    def collect(self, job: SamplingJob | None, *, seconds: float) -> RunnerReply | None:
        """None: the runner died instead of answering."""
        if job is not None:
            self.jobs.append(job)
            self._left = list(job.refs)
        if self._calls == self._dies_after:
            self.alive = False
            return None
        if self._calls == self._fails_after:
            return RunnerReply((), 0, "RuntimeError: out of memory")
        self._calls += 1
        done = [self._left.pop(0)] if self._left else []
        groups = tuple(make_group(ref.position, [1.0, -1.0]) for ref in done)
        return RunnerReply(groups, len(self._left))


class RunnerGroup:
    """The part of RLlib's EnvRunnerGroup that the pool uses."""

    def __init__(self, *runners: Runner, local: Runner | None = None) -> None:
        self.runners = dict(enumerate(runners, start=1))
        self.local_env_runner = local
        self._requests: list[tuple[int, Callable[[], RunnerReply | None]]] = []

    def num_remote_workers(self) -> int:
        return len(self.runners)

    def healthy_worker_ids(self) -> list[int]:
        return [i for i, runner in self.runners.items() if runner.alive]

    def foreach_env_runner_async(
        self, func: str, *, tag: str, kwargs: dict[str, Any], remote_worker_ids: list[int]
    ) -> int:
        (worker,) = remote_worker_ids
        runner = self.runners[worker]
        if not runner.alive or worker in {busy for busy, _ in self._requests}:
            return 0
        self._requests.append((worker, lambda: getattr(runner, func)(**kwargs)))
        return 1

    def fetch_ready_async_reqs(
        self, *, tags: str, timeout_seconds: float
    ) -> list[tuple[int, RunnerReply]]:
        requests, self._requests = self._requests, []
        replies = [(worker, call()) for worker, call in requests]
        return [(worker, reply) for worker, reply in replies if reply is not None]


def job(problems: int) -> SamplingJob:
    refs = tuple(ProblemRef(position, position, position) for position in range(problems))
    return SamplingJob(refs, 2, Sampling(1.0, 1.0, 8), seed=100)


def sample(group: RunnerGroup, problems: int) -> list[Group]:
    return list(RunnerPool(group).sample(job(problems)))


def asked(runner: Runner) -> list[list[int]]:
    return [[ref.position for ref in job.refs] for job in runner.jobs]


def test_problem_i_goes_to_runner_i_modulo_their_number():
    group = RunnerGroup(Runner(), Runner(), Runner())
    groups = sample(group, 8)
    assert asked(group.runners[1]) == [[0, 3, 6]]
    assert asked(group.runners[2]) == [[1, 4, 7]]
    assert asked(group.runners[3]) == [[2, 5]]
    assert sorted(g.ref.position for g in groups) == list(range(8))


def test_a_runner_without_problems_is_not_waited_for():
    group = RunnerGroup(Runner(), Runner(), Runner())
    assert [g.ref.position for g in sample(group, 1)] == [0]


def test_no_two_runners_sample_with_the_same_seed_and_a_run_repeats_its_seeds():
    def seeds() -> list[int]:
        group = RunnerGroup(Runner(), Runner(dies_after=1), Runner())
        sample(group, 9)
        return [job.seed for runner in group.runners.values() for job in runner.jobs]

    first = seeds()
    assert len(first) == 5  # three jobs, and two for what the dead runner left
    assert len(set(first)) == 5
    assert seeds() == first


def test_all_problems_of_a_job_are_sampled_in_its_way():
    group = RunnerGroup(Runner(), Runner())
    sample(group, 4)
    for runner in group.runners.values():
        (given,) = runner.jobs
        assert (given.group_size, given.sampling) == (2, Sampling(1.0, 1.0, 8))


@pytest.mark.parametrize("dies_after", [0, 1, 2])
def test_the_problems_of_a_dead_runner_are_asked_again_and_none_is_doubled(dies_after):
    group = RunnerGroup(Runner(), Runner(dies_after=dies_after), Runner())
    counts = Counter(g.ref.position for g in sample(group, 9))
    assert counts == Counter(range(9))
    again = [positions for i in (1, 3) for positions in asked(group.runners[i])[1:]]
    lost = sorted(position for positions in again for position in positions)
    assert lost == [1, 4, 7][dies_after:]


def test_a_runner_that_dies_while_it_repeats_anothers_work_loses_nothing_either():
    group = RunnerGroup(Runner(), Runner(dies_after=0), Runner(dies_after=3))
    counts = Counter(g.ref.position for g in sample(group, 9))
    assert counts == Counter(range(9))
    assert group.healthy_worker_ids() == [1]


def test_a_group_that_a_runner_reports_twice_is_handed_on_once():
    class Stutterer(Runner):
        def collect(self, job: SamplingJob | None, *, seconds: float) -> RunnerReply | None:
            reply = super().collect(job, seconds=seconds)
            assert reply is not None
            return RunnerReply(reply.groups * 2, reply.unfinished)

    assert Counter(g.ref.position for g in sample(RunnerGroup(Stutterer()), 3)) == Counter(range(3))


def test_when_no_runner_is_left_the_error_counts_the_unanswered():
    group = RunnerGroup(Runner(dies_after=1), Runner(dies_after=0))
    with pytest.raises(EngineError, match="no runner is left; 3 problems are unanswered"):
        sample(group, 4)


@pytest.mark.parametrize("local", [True, False])
def test_an_engine_that_fails_is_an_error_with_its_reason(local):
    broken = Runner(fails_after=1)
    group = RunnerGroup(local=broken) if local else RunnerGroup(Runner(), broken)
    with pytest.raises(EngineError, match=f"runner {0 if local else 2} failed.*out of memory"):
        sample(group, 6)


def test_groups_finished_before_an_engine_failed_still_arrive():
    groups = RunnerPool(RunnerGroup(local=Runner(fails_after=2))).sample(job(5))
    assert [next(groups).ref.position, next(groups).ref.position] == [0, 1]
    with pytest.raises(EngineError):
        next(groups)


def test_without_remote_runners_the_local_one_samples_everything():
    group = RunnerGroup(local=Runner())
    assert [g.ref.position for g in sample(group, 5)] == list(range(5))
    assert asked(group.local_env_runner) == [[0, 1, 2, 3, 4]]
