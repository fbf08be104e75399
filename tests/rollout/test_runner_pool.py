"""Many runners as one: who is asked what, and what happens when one of them fails.

Control flow only: the runners are small stand-ins behind `RunnerCalls`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import make_group

from rllib_dapo.errors import EngineError
from rllib_dapo.rollout import runner_pool
from rllib_dapo.rollout.runner_calls import CallResults, LocalCalls
from rllib_dapo.rollout.runner_pool import RunnerPool
from rllib_dapo.rollout.sampling_job import LOCAL_RUNNER, RunnerReply, SamplingJob
from rllib_dapo.settings.general import DAPOSettings
from rllib_dapo.types import Group, ProblemRef

pytestmark = pytest.mark.timeout(20)  # a pool that waits for a dead runner waits for ever


@dataclass(kw_only=True)
class Settings(DAPOSettings):
    """Groups of two; patience for tests."""

    group_size: int = 2
    evaluation_samples: int = 3
    runner_timeout_s: float = 0.2
    runner_restart_timeout_s: float = 0.2


@dataclass(kw_only=True)
class Patient(Settings):
    """For runs in which nothing hangs: a busy machine is no reason to give a runner up."""

    runner_timeout_s: float = 60.0
    runner_restart_timeout_s: float = 60.0


class Runner:
    """Finishes one problem a call; from some call on it may die, hang, or break."""

    def __init__(
        self,
        *,
        capacity: int = 4,
        dies: int | None = None,
        hangs: int | None = None,
        breaks: int | None = None,
        comes_back: bool = False,
    ) -> None:
        self.capacity, self.comes_back = capacity, comes_back
        self.jobs: list[SamplingJob] = []
        self.alive = True
        self.left: list[ProblemRef] = []
        self.version: int | None = 0
        self._calls = 0
        self._dies, self._hangs, self._breaks = dies, hangs, breaks

    def collect(self, job: SamplingJob | None, *, seconds: float) -> RunnerReply | None:
        """None: it died instead of answering, or does not answer."""
        call, self._calls = self._calls, self._calls + 1
        if job is not None:
            assert job.weights_version == self.version
            self.jobs.append(job)
            self.left += job.refs
        if self._dies is not None and call >= self._dies:
            self.alive = False
            return None
        if self._breaks is not None and call >= self._breaks:
            return RunnerReply((), len(self.left), broken="RuntimeError: out of memory")
        if self._hangs is not None and call >= self._hangs:
            return RunnerReply((), len(self.left), steps=1, capacity=self.capacity)
        done = [self.left.pop(0)] if self.left else []
        groups = tuple(made(ref) for ref in done)
        return RunnerReply(groups, len(self.left), 10 + call, 0.5 * call, self.capacity)

    def withdraw(self) -> None:
        self.left.clear()

    def restart(self) -> None:
        self.alive, self.left, self.version = True, [], None
        self._dies = self._hangs = self._breaks = None


class Calls:
    """`RunnerCalls` to these runners; at most `late` replies arrive at once."""

    def __init__(self, *runners: Runner, late: int = 100) -> None:
        self.runners = dict(enumerate(runners, start=1))
        self.killed: list[int] = []
        self.refuse_weights: set[int] = set()
        self._requests: list[tuple[int, SamplingJob | None]] = []
        self._late = late

    def alive(self) -> list[int]:
        return [number for number, runner in self.runners.items() if runner.alive]

    def start(self, runner: int, job: SamplingJob | None, seconds: float) -> bool:
        assert runner not in dict(self._requests), "a second call while one is in flight"
        if self.runners[runner].alive:
            self._requests.append((runner, job))
        return self.runners[runner].alive

    def replies(self) -> list[tuple[int, RunnerReply]]:
        requests, self._requests = self._requests[: self._late], self._requests[self._late :]
        replies = [
            (number, self.runners[number].collect(job, seconds=0.0)) for number, job in requests
        ]
        return [(number, reply) for number, reply in replies if reply is not None]

    def call(self, runners: Sequence[int], method: str, *arguments: Any) -> CallResults:
        return CallResults(
            {number: getattr(self.runners[number], method)(*arguments) for number in runners}
        )

    def kill(self, runner: int) -> None:
        self.killed.append(runner)
        self.runners[runner].alive = False

    def returned(self) -> list[int]:
        back = [n for n, r in self.runners.items() if not r.alive and r.comes_back]
        for number in back:
            self.runners[number].restart()
        return back

    def send_weights(self, runners: Sequence[int]) -> list[int]:
        done = [number for number in runners if number not in self.refuse_weights]
        for number in done:
            self.runners[number].version = 0
        return done


def made(ref: ProblemRef) -> Group:
    group = make_group(ref.position, [1.0, -1.0])
    return Group(ref, group.prompt, group.completions, 0)


def refs(count: int, *, evaluation: bool = False) -> list[ProblemRef]:
    return [ProblemRef(p, p, p, evaluation) for p in range(count)]


def make_pool(calls: Calls, config: type[Settings] = Settings) -> RunnerPool:
    return RunnerPool(calls, config(), seed=7, send_weights=calls.send_weights)


def sample(calls: Calls, problems: int, config: type[Settings] = Settings) -> list[Group]:
    pool = make_pool(calls, config)
    pool.ask(refs(problems))
    groups = []
    while pool.in_flight:
        groups += pool.poll()
    return groups


def asked(runner: Runner) -> list[int]:
    return [ref.position for job in runner.jobs for ref in job.refs]


def counted(groups: list[Group]) -> Counter[int]:
    return Counter(group.ref.position for group in groups)


# -- Balance ------------------------------------------------------------------------------


def test_the_runner_with_least_to_do_gets_the_next_problem():
    calls = Calls(Runner(), Runner(), Runner())
    pool = make_pool(calls)
    pool.ask(refs(11))
    pool.poll()  # one each, of which they know no more
    pool.poll()
    assert [asked(calls.runners[n]) for n in (1, 2, 3)] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8]]


def test_a_runner_has_in_hand_what_its_engine_computes_at_once_and_half_of_it_more():
    calls = Calls(Runner(capacity=8), Runner(capacity=32))
    pool = make_pool(calls)
    pool.ask(refs(1_000))
    pool.poll()  # it knows their capacities from the first reply
    pool.poll()
    assert [len(calls.runners[n].left) for n in (1, 2)] == [6 - 1, 24 - 1]  # one was answered


def test_a_fast_runner_gets_more():
    class Fast(Runner):
        def collect(self, job: SamplingJob | None, *, seconds: float) -> RunnerReply | None:
            reply = super().collect(job, seconds=seconds)
            assert reply is not None
            done = tuple(made(ref) for ref in self.left)
            self.left.clear()
            return RunnerReply(reply.groups + done, 0, reply.steps, 0.0, self.capacity)

    calls = Calls(Runner(), Fast())
    assert counted(sample(calls, 60)) == Counter(range(60))
    assert len(asked(calls.runners[2])) > 1.5 * len(asked(calls.runners[1]))


def test_problems_of_training_and_evaluation_are_sampled_in_their_own_ways():
    calls = Calls(Runner())
    pool = make_pool(calls)
    pool.ask([*refs(2), *refs(2, evaluation=True)])
    groups = []
    while pool.in_flight:
        groups += pool.poll()
    ways = {(job.group_size, ref.evaluation) for job in calls.runners[1].jobs for ref in job.refs}
    assert ways == {(2, False), (3, True)}
    assert Counter(group.ref for group in groups) == Counter([*refs(2), *refs(2, evaluation=True)])


def test_the_time_that_engines_computed_is_added_up():
    calls = Calls(Runner(), Runner())
    pool = make_pool(calls)
    pool.ask(refs(6))
    while pool.in_flight:
        pool.poll()
    assert pool.busy_s == 0.5 * 2 + 0.5 * 2  # three calls each, the first at 0


# -- Withdrawing ----------------------------------------------------------------------------


def test_withdrawing_gives_back_what_is_not_answered_in_the_order_of_the_problems():
    calls = Calls(Runner(), Runner(), late=1)
    pool = make_pool(calls)
    pool.ask(refs(9)[::-1])
    groups = pool.poll()
    late, again = pool.withdraw()
    assert [ref.position for ref in again] == sorted(ref.position for ref in again)
    answered = counted(groups + late)
    assert answered + Counter(ref.position for ref in again) == Counter(range(9))
    assert late  # the second runner's call was in flight
    assert pool.in_flight == 0
    assert not calls.runners[1].left
    assert not calls.runners[2].left


def test_after_withdrawing_the_same_problems_can_be_asked_again():
    calls = Calls(Runner(), Runner())
    pool = make_pool(calls)
    pool.ask(refs(5))
    first = pool.poll()
    late, again = pool.withdraw()
    pool.ask(again)
    while pool.in_flight:
        first += pool.poll()
    assert counted(first + late) == Counter(range(5))


# -- Faults -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["dies", "hangs", "breaks"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_the_problems_of_a_lost_runner_are_asked_elsewhere_and_none_is_doubled(how, after):
    calls = Calls(Runner(), Runner(**{how: after}), Runner())
    pool = make_pool(calls)
    pool.ask(refs(9))
    groups = []
    while pool.in_flight:
        groups += pool.poll()
    assert counted(groups) == Counter(range(9))
    assert sum(pool.lost.values()) == 1
    assert pool.runners == [1, 3]
    assert calls.killed == ([] if how == "dies" else [2])


def test_a_group_that_comes_from_a_runner_given_up_is_not_handed_on():
    """It seemed to hang, its problems were asked again, and then it answers after all."""
    calls = Calls(Runner(), Runner(hangs=0))
    pool = make_pool(calls)
    pool.ask(refs(4))
    groups = []
    while pool.in_flight:
        groups += pool.poll()
    late = RunnerReply(tuple(made(ref) for ref in refs(4)), 0)
    assert pool._take(2, late) == []
    assert counted(groups) == Counter(range(4))


def test_a_group_that_a_runner_reports_twice_is_handed_on_once():
    class Stutterer(Runner):
        def collect(self, job: SamplingJob | None, *, seconds: float) -> RunnerReply | None:
            reply = super().collect(job, seconds=seconds)
            assert reply is not None
            return RunnerReply(reply.groups * 2, reply.unfinished, reply.steps)

    assert counted(sample(Calls(Stutterer()), 3)) == Counter(range(3))


def test_a_runner_that_comes_back_gets_weights_before_it_gets_work():
    calls = Calls(Runner(dies=1, comes_back=True))  # `collect` asserts the version
    pool = make_pool(calls)
    pool.ask(refs(5))
    groups = []
    while pool.in_flight:
        groups += pool.poll()
    assert counted(groups) == Counter(range(5))
    assert pool.take_returned() == [1]
    assert pool.take_returned() == []


def test_a_runner_without_weights_stays_out_until_it_has_them():
    calls = Calls(Runner(), Runner(dies=0, comes_back=True))
    calls.refuse_weights = {2}
    pool = make_pool(calls)
    pool.ask(refs(9))
    while pool.in_flight:
        pool.poll()
    assert pool.runners == [1]
    calls.refuse_weights = set()
    pool.poll()
    assert pool.runners == [1, 2]


def test_runners_that_must_wait_for_new_weights_get_them_with_all_others():
    """Where the last weights were not kept there is nothing to send them before."""
    calls = Calls(Runner(), Runner(dies=0, comes_back=True))
    pool = RunnerPool(calls, Patient(), seed=7, send_weights=lambda numbers: None)
    pool.serve(0, calls.send_weights([1, 2]))
    pool.ask(refs(6))
    while pool.in_flight:
        pool.poll()
    assert pool.runners == [1]
    assert pool.reachable == [1, 2]
    pool.serve(1, [1, 2])
    assert pool.runners == [1, 2]
    assert calls.killed == []


def test_a_runner_that_is_back_but_refuses_weights_is_started_once_more():
    calls = Calls(Runner(), Runner(dies=0, comes_back=True))
    calls.refuse_weights = {2}
    pool = make_pool(calls, Patient)
    pool.ask(refs(6))
    while pool.in_flight:
        pool.poll()
    assert pool.runners == [1]
    assert 2 in calls.killed


def test_a_runner_that_scores_but_makes_no_steps_is_not_taken_for_hung():
    """Its engine has nothing left to do, and the answers take long to score."""

    class Scorer(Runner):
        def collect(self, job: SamplingJob | None, *, seconds: float) -> RunnerReply | None:
            time.sleep(0.03)
            reply = super().collect(job, seconds=seconds)
            assert reply is not None
            return RunnerReply(reply.groups, reply.unfinished, 1, 0.0, self.capacity)

    @dataclass(kw_only=True)
    class Brisk(Settings):
        runner_timeout_s: float = 1.0

    calls = Calls(Scorer(capacity=200))
    pool = make_pool(calls, Brisk)
    pool.ask(refs(50))  # 1.5 s
    while pool.in_flight:
        pool.poll()
    assert not pool.lost


def test_a_runner_that_does_not_take_new_weights_is_replaced():
    calls = Calls(Runner(), Runner(comes_back=True))
    pool = make_pool(calls)
    pool.serve(0, [1])
    assert pool.runners == [1]
    assert calls.killed == [2]
    pool.poll()
    assert pool.runners == [1, 2]


def test_a_problem_that_brings_down_every_runner_is_given_up_and_the_others_are_answered():
    class Fragile(Runner):
        def collect(self, job: SamplingJob | None, *, seconds: float) -> RunnerReply | None:
            poison = [ref for ref in self.left + list(job.refs if job else ()) if ref.index == 3]
            if poison and (len(self.left) <= 1):
                self.alive = False
                return None
            return super().collect(job, seconds=seconds)

    calls = Calls(Fragile(comes_back=True, capacity=2), Fragile(comes_back=True, capacity=2))
    groups = sample(calls, 8)
    assert counted(groups) == Counter(range(8))
    (failed,) = [group for group in groups if group.failure is not None]
    assert failed.ref.position == 3
    assert "5 runners failed while they sampled it (max_problem_attempts=5)" in failed.failure


@pytest.mark.parametrize("how", ["dies", "breaks"])
def test_when_no_runner_is_left_the_error_counts_the_unanswered_and_gives_the_reason(how):
    calls = Calls(Runner(**{how: 1}), Runner(**{how: 0}))
    with pytest.raises(
        EngineError, match=r"no runner is left.* 3 problems are unanswered"
    ) as caught:
        sample(calls, 4)
    assert {"dies": "its process died", "breaks": "out of memory"}[how] in str(caught.value)
    assert "runner_restart_timeout_s=0.2" in str(caught.value)


def test_an_error_that_ends_the_run_is_raised():
    class Strict(Runner):
        def collect(self, job: SamplingJob | None, *, seconds: float) -> RunnerReply | None:
            return RunnerReply((), 0, error="RewardError: no number")

    with pytest.raises(EngineError, match="runner 1 failed: RewardError: no number"):
        sample(Calls(Strict()), 2)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_fails_and_whenever_each_problem_is_answered_exactly_once(data):
    kinds = st.sampled_from(["dies", "breaks", "none"])
    runners = [
        Runner(
            capacity=data.draw(st.integers(1, 9)),
            comes_back=True,
            **(
                {kind: data.draw(st.integers(0, 4))} if (kind := data.draw(kinds)) != "none" else {}
            ),
        )
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    problems = data.draw(st.integers(1, 25))
    calls = Calls(*runners, late=data.draw(st.integers(1, 4)))
    assert counted(sample(calls, problems, Patient)) == Counter(range(problems))


# -- The local runner -------------------------------------------------------------------------


def local_pool(runner: Runner) -> RunnerPool:
    return RunnerPool(LocalCalls(runner), Settings(), seed=7, send_weights=lambda numbers: numbers)


def test_the_local_runner_answers_like_a_remote_one():
    pool = local_pool(Runner())
    assert pool.runners == [LOCAL_RUNNER]
    pool.ask(refs(5))
    groups = []
    while pool.in_flight:
        groups += pool.poll()
    assert [group.ref.position for group in groups] == list(range(5))


def test_a_local_engine_that_fails_ends_the_run_with_its_reason():
    pool = local_pool(Runner(breaks=1))
    pool.ask(refs(5))
    assert len(pool.poll()) == 1
    with pytest.raises(EngineError, match="out of memory"):
        pool.poll()


def test_the_local_runner_is_not_given_up_for_being_slow(monkeypatch):
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr(runner_pool.time, "monotonic", lambda: float(next(clock)))
    pool = local_pool(Runner(hangs=0))
    pool.ask(refs(1))
    for _ in range(5):
        assert pool.poll() == []
    assert pool.runners == [LOCAL_RUNNER]
