"""Calls to engines of runners that are actors: what each returned, and why others did not."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
from ray import cloudpickle
from weight_sync_parts import EngineInside, RunnerGroup

from rllib_dapo.errors import EngineError
from rllib_dapo.rollout.runner_calls import CallFailure, LocalCalls, RemoteCalls, wait_for_calls
from rllib_dapo.rollout.sampling_job import LOCAL_RUNNER

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # `Runner`, for workers

pytestmark = pytest.mark.timeout(120)


@ray.remote(num_cpus=0)
class Runner:
    """Does what the name of the method says."""

    def call_engine(self, method: str, *arguments: Any) -> Any:
        if method == "die":
            os._exit(1)
        if method == "hang":
            time.sleep(600)
        if method == "refuse":
            raise EngineError("the weights\nare a mixture")
        return sum(float(np.sum(a)) for a in arguments)


@pytest.fixture
def runners(ray_session: None) -> Iterator[dict[int, Any]]:
    actors = {number: Runner.remote() for number in (1, 2, 3)}
    yield actors
    for actor in actors.values():
        ray.kill(actor)


def test_each_runner_answers_for_itself_and_references_arrive_as_values(runners):
    calls = RemoteCalls(RunnerGroup(runners), timeout_s=60)
    results = calls.call_engines([1, 2, 3], "sum", ray.put(np.ones(5)), np.ones(2))
    assert (results.values, results.failures) == ({1: 7.0, 2: 7.0, 3: 7.0}, {})
    assert list(calls.call_engines([3], "sum").values) == [3]
    assert calls.alive() == list(calls.handles()) == [1, 2, 3]


def test_one_that_refuses_dies_or_hangs_is_named_and_the_others_answer(runners):
    wait_until_started(runners)
    calls = RemoteCalls(RunnerGroup(runners), timeout_s=3)
    refusal = calls.call_engines([1], "refuse").failures
    assert refusal == {1: CallFailure("EngineError: the weights")}
    assert calls.call_engines([2], "die").failures[2].lost
    assert calls.alive() == [1, 3]
    runners[3].call_engine.remote("hang")
    results = calls.call_engines([1, 2, 3], "sum")
    assert list(results.values) == [1]
    assert results.failures == {
        2: CallFailure("its process died", lost=True),
        3: CallFailure("no answer within runner_timeout_s=3", lost=True),
    }
    assert calls.alive() == [1]


def test_where_all_wait_for_each_other_the_first_failure_ends_the_wait(runners):
    wait_until_started(runners)
    runners[1].call_engine.remote("hang")
    runners[2].call_engine.remote("hang")
    calls = {number: actor.call_engine.remote("refuse") for number, actor in runners.items()}
    results = wait_for_calls(calls, timeout_s=600, until_failure=True)
    assert list(results.failures) == [3]  # the test's own time limit is far below that one


def wait_until_started(runners: dict[int, Any]) -> None:
    ray.get([actor.call_engine.remote("sum") for actor in runners.values()])


def test_without_remote_runners_the_local_one_is_asked():
    def refuse() -> None:
        raise EngineError("no")

    engine = SimpleNamespace(add=lambda a, b: a + b, refuse=refuse, weights=None)
    calls = LocalCalls(EngineInside(engine))
    assert calls.alive() == [LOCAL_RUNNER]
    assert calls.handles() == {}
    assert calls.call_engines([LOCAL_RUNNER], "add", 2, 3).values == {LOCAL_RUNNER: 5}
    refusal = calls.call_engines([LOCAL_RUNNER], "refuse").failures
    assert refusal == {LOCAL_RUNNER: CallFailure("EngineError: no")}
    assert calls.call_engines([], "refuse").failures == {}
