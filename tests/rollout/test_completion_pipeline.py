"""An engine that is stepped, a scorer behind it, and commands between two steps."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from strategies import make_group

from rllib_dapo.errors import EngineError
from rllib_dapo.rollout.completion_pipeline import CompletionPipeline
from rllib_dapo.rollout.engine.base import FinishedRequest
from rllib_dapo.types import Group

pytestmark = pytest.mark.timeout(30)


class Engine:
    """Finishes requests in the order of their numbers, one every `every` steps."""

    def __init__(self, *, every: int = 1, fails_at: int | None = None) -> None:
        self.requests: list[str] = []
        self.steps = 0
        self.stepping = False
        self.gate = threading.Event()  # while it is cleared, a step does not end
        self.gate.set()
        self._every, self._fails_at = every, fails_at

    @property
    def num_in_flight(self) -> int:
        return len(self.requests)

    def step(self) -> list[FinishedRequest]:
        self.stepping = True
        self.steps += 1
        time.sleep(0.001)
        assert self.gate.wait(20)
        self.stepping = False
        if self.steps == self._fails_at:
            raise RuntimeError("out of memory")
        if self.steps % self._every:
            return []
        return [FinishedRequest(self.requests.pop(0), ())]


def score(request: FinishedRequest) -> Group:
    return make_group(int(request.request_id), [1.0, -1.0])


def submit(pipeline: CompletionPipeline, *numbers: int) -> None:
    pipeline.between_steps(lambda engine: engine.requests.extend(map(str, numbers)))


def collect(pipeline: CompletionPipeline, count: int) -> list[int]:
    """Positions of the next so many groups."""
    found: list[int] = []
    while len(found) < count:
        for request_id, group in pipeline.collect(5.0):
            assert group.ref.position == int(request_id)
            found.append(group.ref.position)
    return found


def wait_for(condition: Any) -> None:
    while not condition():
        time.sleep(0.001)


@pytest.fixture
def make() -> Iterator[Any]:
    """A function that makes pipelines; their threads are ended after the test."""
    made: list[CompletionPipeline] = []

    def make_pipeline(engine: Engine, score: Any = score, *, threads: bool = True) -> Any:
        made.append(CompletionPipeline(engine, score, own_threads=threads))
        return made[-1]

    yield make_pipeline
    for pipeline in made:
        pipeline.engine.gate.set()
        pipeline.close()
        assert not any(thread.is_alive() for thread in pipeline._threads)


@pytest.mark.parametrize("threads", [True, False])
def test_every_request_comes_back_once_as_a_group(make, threads):
    pipeline = make(Engine(every=3), threads=threads)
    submit(pipeline, *range(20))
    first = collect(pipeline, 5)
    submit(pipeline, *range(20, 30))
    assert Counter(first + collect(pipeline, 30 - len(first))) == Counter(range(30))
    assert pipeline.steps == 3 * 30


def test_with_threads_the_engine_works_while_nobody_collects(make):
    engine = Engine()
    pipeline = make(engine)
    submit(pipeline, *range(50))
    wait_for(lambda: not engine.requests)
    assert Counter(collect(pipeline, 50)) == Counter(range(50))  # none is lost between calls


def test_without_threads_it_works_only_while_someone_collects(make):
    engine = Engine(every=2)
    pipeline = make(engine, threads=False)
    submit(pipeline, 1, 2)
    assert engine.steps == 0
    assert [i for i, _ in pipeline.collect(5.0)] == ["1"]
    assert engine.steps == 2


def test_without_threads_a_call_without_patience_still_makes_a_step(make):
    pipeline = make(Engine(every=2), threads=False)
    submit(pipeline, 1)
    assert pipeline.collect(0.0) == []
    assert [i for i, _ in pipeline.collect(0.0)] == ["1"]


def test_answers_are_scored_while_the_engine_computes_others(make):
    engine, scoring, enough = Engine(), threading.Event(), threading.Event()

    def slow(request: FinishedRequest) -> Group:
        scoring.set()
        assert enough.wait(20)
        return score(request)

    pipeline = make(engine, slow)
    submit(pipeline, *range(10))
    assert scoring.wait(20)
    wait_for(lambda: not engine.requests)  # all computed, and the first not yet scored
    assert pipeline.collect(0.0) == []
    enough.set()
    assert collect(pipeline, 10) == list(range(10))


def test_commands_are_run_between_steps_and_soon_although_the_engine_has_work(make):
    engine = Engine(every=10_000)
    pipeline = make(engine)
    submit(pipeline, 1)
    wait_for(lambda: engine.steps > 3)
    seen = [pipeline.between_steps(lambda e: (e.stepping, e.steps)) for _ in range(20)]
    assert not any(stepping for stepping, _ in seen)
    assert engine.requests == ["1"]
    # No more than the step in flight comes before a command.
    before = engine.steps
    assert pipeline.between_steps(lambda e: e.steps) <= before + 1


def test_a_command_waits_for_the_step_in_flight(make):
    engine = Engine(every=10_000)
    pipeline = make(engine)
    submit(pipeline, 1)
    engine.gate.clear()
    wait_for(lambda: engine.stepping)
    order: list[str] = []
    caller = threading.Thread(target=lambda: pipeline.between_steps(lambda _: order.append("it")))
    caller.start()
    caller.join(0.05)
    order.append("gate")
    engine.gate.set()
    caller.join()
    assert order == ["gate", "it"]


@pytest.mark.parametrize("threads", [True, False])
def test_what_a_command_raises_is_raised_where_it_was_given_and_harms_nobody_else(make, threads):
    pipeline = make(Engine(), threads=threads)

    def refuse(engine: Any) -> None:
        raise ValueError("no such weights")

    with pytest.raises(ValueError, match="no such weights"):
        pipeline.between_steps(refuse)
    submit(pipeline, 7)
    assert collect(pipeline, 1) == [7]


@pytest.mark.parametrize("threads", [True, False])
def test_an_engine_that_fails_is_reported_after_the_groups_that_are_done(make, threads):
    pipeline = make(Engine(fails_at=3), threads=threads)
    submit(pipeline, *range(5))
    assert collect(pipeline, 2) == [0, 1]
    for _ in range(2):
        with pytest.raises(EngineError, match="RuntimeError: out of memory"):
            pipeline.collect(20.0)
    if threads:
        with pytest.raises(EngineError, match="the engine failed before: out of memory"):
            submit(pipeline, 9)


@pytest.mark.parametrize("threads", [True, False])
def test_what_the_scorer_raises_is_raised_where_groups_are_collected(make, threads):
    def strict(request: FinishedRequest) -> Group:
        if request.request_id == "2":
            raise ZeroDivisionError("a reward without a number")
        return score(request)

    pipeline = make(Engine(), strict, threads=threads)
    submit(pipeline, *range(4))
    assert collect(pipeline, 2) == [0, 1]
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="a reward without a number"):
            collect(pipeline, 2)


@pytest.mark.parametrize("threads", [True, False])
def test_requests_that_the_scorer_no_longer_knows_make_no_group(make, threads):
    pipeline = make(Engine(), lambda r: None if r.request_id in "13" else score(r), threads=threads)
    submit(pipeline, *range(5))
    assert collect(pipeline, 3) == [0, 2, 4]


def test_closing_ends_the_threads_although_there_is_work_left(make):
    engine = Engine(every=10_000)
    pipeline = make(engine)
    submit(pipeline, 1)
    pipeline.close()
    assert not any(thread.is_alive() for thread in pipeline._threads)
    stopped = engine.steps
    time.sleep(0.01)
    assert engine.steps == stopped
