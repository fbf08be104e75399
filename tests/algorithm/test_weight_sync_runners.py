"""Calls to runners in actors: who answered what, and why others did not."""

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

from rllib_dapo.algorithm.weight_sync.runners import RunnerEngines, call_engines
from rllib_dapo.errors import EngineError
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
    engines = RunnerEngines(RunnerGroup(runners), timeout_s=60)
    answers = engines.call("sum", ray.put(np.ones(5)), np.ones(2))
    assert (answers.values, answers.failures) == ({1: 7.0, 2: 7.0, 3: 7.0}, {})
    assert list(engines.call("sum", only=[3]).values) == [3]
    some = RunnerEngines(RunnerGroup(runners), timeout_s=60, only=[1, 3, 8])
    assert some.ids() == list(some.handles()) == list(some.call("sum").values) == [1, 3]


def test_one_that_refuses_dies_or_hangs_is_named_and_the_others_answer(runners):
    ready = call_engines(runners, "sum", timeout_s=60)
    assert not ready.failures
    engines = RunnerEngines(RunnerGroup(runners), timeout_s=3)
    refusal = engines.call("refuse", only=[1]).failures
    assert refusal == {1: "EngineError: the weights"}
    assert list(engines.call("die", only=[2]).failures) == [2]
    runners[3].call_engine.remote("hang")
    answers = engines.call("sum")
    assert list(answers.values) == [1]
    assert answers.failures[3] == "no answer within runner_timeout_s=3"
    assert 2 in answers.failures


def test_where_all_wait_for_each_other_the_first_failure_ends_the_wait(runners):
    call_engines(runners, "sum", timeout_s=60)
    runners[1].call_engine.remote("hang")
    runners[2].call_engine.remote("hang")
    answers = call_engines(runners, "refuse", timeout_s=600, until_failure=True)
    assert list(answers.failures) == [3]  # the test's own time limit is far below that one


def test_without_remote_runners_the_local_one_is_asked():
    def refuse() -> None:
        raise EngineError("no")

    engine = SimpleNamespace(add=lambda a, b: a + b, refuse=refuse, weights=None)
    engines = RunnerEngines(RunnerGroup(local=EngineInside(engine)), timeout_s=1)
    assert engines.ids() == [LOCAL_RUNNER]
    assert engines.handles() == {}
    assert engines.call("add", 2, 3).values == {LOCAL_RUNNER: 5}
    assert engines.call("refuse").failures == {LOCAL_RUNNER: "EngineError: no"}
