"""Calls to runners that are real actors: who answers, who does not, who comes back."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import cloudpickle
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils.actor_manager import FaultAwareApply, FaultTolerantActorManager

from rllib_dapo.rollout import runner_calls
from rllib_dapo.rollout.runner_calls import LocalCalls, RemoteCalls
from rllib_dapo.rollout.sampling_job import LOCAL_RUNNER, RunnerReply

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's workers do not find it

# Actors that import RLlib start several times.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("ray_session"),
]


class Runner(FaultAwareApply):
    """As much of an EnvRunner as is called."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(restart_failed_env_runners=False)

    def collect(self, job: Any, *, seconds: float) -> RunnerReply:
        time.sleep(seconds)
        return RunnerReply((), 0, steps=os.getpid())

    def withdraw(self, seconds: float = 0.0) -> None:
        time.sleep(seconds)


class Group:
    """RLlib's group, without what it takes to make one."""

    def __init__(self, restarts: int, size: int) -> None:
        actor = ray.remote(num_cpus=0, max_restarts=restarts)(Runner)
        self._worker_manager = FaultTolerantActorManager(
            [actor.remote() for _ in range(size)],
            max_remote_requests_in_flight_per_actor=1,
            init_id=1,
        )

    healthy_worker_ids = EnvRunnerGroup.healthy_worker_ids
    healthy_env_runner_ids = EnvRunnerGroup.healthy_env_runner_ids
    foreach_env_runner_async = EnvRunnerGroup.foreach_env_runner_async
    fetch_ready_async_reqs = EnvRunnerGroup.fetch_ready_async_reqs
    num_in_flight_async_reqs = EnvRunnerGroup.num_in_flight_async_reqs
    _ignore_ray_errors_on_env_runners = True


@pytest.fixture(scope="module")
def group(ray_session):
    """Two runners for all tests; each leaves both in service."""
    group = Group(restarts=9, size=2)
    assert withdraw(RemoteCalls(group, 100.0), [1, 2]) == [1, 2]  # both have started
    yield group
    group._worker_manager.clear()


@pytest.fixture
def calls(group) -> RemoteCalls:
    return RemoteCalls(group, 30.0)


def withdraw(calls: Any, runners: list[int]) -> list[int]:
    """Those of the runners that did it."""
    return list(calls.call(runners, "withdraw").values)


def replies(calls: RemoteCalls, count: int) -> dict[int, RunnerReply]:
    found: dict[int, RunnerReply] = {}
    while len(found) < count:
        found |= dict(calls.replies())
    return found


def wait_until_back(calls: RemoteCalls) -> list[int]:
    while not (back := calls.returned()):
        time.sleep(0.05)
    return back


def process(calls: RemoteCalls, runner: int) -> int:
    calls.start(runner, None, 0.0)
    return replies(calls, 1)[runner].steps


def test_replies_say_whose_they_are_and_one_call_is_in_flight_per_runner(calls):
    assert calls.start(1, None, 1.0)
    assert calls.start(2, None, 0.0)
    assert not calls.start(1, None, 0.0)  # would be a second one
    assert list(replies(calls, 1)) == [2]  # does not wait for the other
    assert list(replies(calls, 1)) == [1]


def test_a_method_is_called_on_some_runners_and_those_that_did_it_are_named(calls):
    assert withdraw(calls, [1, 2]) == [1, 2]
    assert withdraw(calls, [2]) == [2]
    assert withdraw(calls, []) == []


def test_a_call_of_rllibs_under_the_same_name_is_not_in_the_way(calls):
    """RLlib's setup sends a state to all runners and does not wait for the answer."""
    calls._group.foreach_env_runner_async("withdraw", tag="withdraw", kwargs={"seconds": 0.5})
    assert withdraw(calls, [1, 2]) == [1, 2]


def test_a_killed_runner_is_out_of_service_and_comes_back_as_another_process(calls):
    before = process(calls, 1)
    os.kill(before, signal.SIGKILL)
    assert withdraw(calls, [1, 2]) == [2]
    assert calls.alive() == [2]
    assert not calls.start(1, None, 0.0)
    assert wait_until_back(calls) == [1]
    assert calls.alive() == [1, 2]
    assert process(calls, 1) != before
    assert calls.returned() == []


def test_a_runner_that_hangs_is_killed_and_its_late_reply_is_never_seen(calls):
    process(calls, 1)
    calls.start(1, None, 3600.0)
    assert withdraw(RemoteCalls(calls._group, 0.2), [1, 2]) == [2]
    calls.kill(1)
    assert calls.alive() == [2]
    assert wait_until_back(calls) == [1]
    assert calls.replies() == []


def test_a_runner_that_may_not_start_again_is_named_once_and_not_asked_for_ever(caplog):
    calls = RemoteCalls(Group(restarts=0, size=1), 30.0)
    os.kill(process(calls, 1), signal.SIGKILL)
    assert withdraw(calls, [1]) == []
    with caplog.at_level(logging.ERROR, "rllib_dapo"):
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            assert calls.returned() == []
            time.sleep(0.05)
    messages = [r.getMessage() for r in caplog.records if r.name.startswith("rllib_dapo")]
    assert len(messages) == 1
    assert "runner 1 does not come back" in messages[0]
    assert "max_num_env_runner_restarts" in messages[0]


def test_nobody_spins_while_there_is_nothing_to_wait_for(calls, monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(runner_calls, "time", SimpleNamespace(sleep=slept.append))
    assert calls.replies() == []
    assert len(slept) == 1
    assert slept[0] > 0


def test_the_local_runner_works_when_its_reply_is_waited_for():
    calls = LocalCalls(Runner())
    assert calls.alive() == [LOCAL_RUNNER]
    assert calls.replies() == []
    assert calls.start(LOCAL_RUNNER, None, 0.0)
    assert not calls.start(LOCAL_RUNNER, None, 0.0)
    ((number, reply),) = calls.replies()
    assert (number, reply.steps) == (LOCAL_RUNNER, os.getpid())
    assert calls.replies() == []
    assert withdraw(calls, [LOCAL_RUNNER]) == [LOCAL_RUNNER]
    assert calls.returned() == []
