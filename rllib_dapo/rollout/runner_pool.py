"""The pool of runners: problems go in, groups come out as they finish.

    pool.ask(refs)                       # any time, any number
    while pool.in_flight:
        for group in pool.poll(): ...    # in the order in which they finish

The runner with the least to do gets the next problem. Each runner has a little more in flight
than its engine computes at once, so that no engine waits for a message. The
completions do not depend on the runner that samples them (`sampling_job.completion_seed`). If a
runner dies, hangs or fails, other runners get its problems; it returns to service only with the
present weights.
"""

from __future__ import annotations

import heapq
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rllib_dapo.errors import EngineError
from rllib_dapo.rollout.problem_queue import ProblemQueue
from rllib_dapo.rollout.runner_calls import RunnerCalls
from rllib_dapo.rollout.sampling_job import LOCAL_RUNNER, RunnerReply, make_job
from rllib_dapo.rollout.text_episodes import failed_group
from rllib_dapo.settings.general import DAPOSettings
from rllib_dapo.types import Group, ProblemRef

logger = logging.getLogger(__name__)

# How long a runner keeps a call when nothing is finished (shortest, longest). Progress is shown
# and new work is handed out at this interval. It is longer with many runners: a call costs the
# driver about a millisecond, and some runner has always just finished something.
_SLICE_SECONDS = (0.5, 2.0)
_SLICE_SECONDS_PER_RUNNER = 1 / 64

# How much work a runner has in flight, in multiples of what its engine computes at once. Half of
# it waits in the engine's queue while the next message is on its way.
_WORK_PER_CAPACITY = 1.5


@dataclass
class RunnerState:
    """What the pool knows of one runner.

    Attributes:
        in_flight: the problems assigned to it.
        unsent: those of them that no message has told it about yet.
        calling: True while a call to it is in flight.
        steps: engine steps it has reported; -1 before its first reply.
        last_progress: when it last made progress or was idle, by `time.monotonic`.
        capacity: completions that its engine computes at once; 1 before its first reply.
        busy_s: seconds that its engine has computed, as it reports them.
    """

    in_flight: dict[ProblemRef, None] = field(default_factory=dict)
    unsent: list[ProblemRef] = field(default_factory=list)
    calling: bool = False
    steps: int = -1
    last_progress: float = field(default_factory=time.monotonic)
    capacity: int = 1
    busy_s: float = 0.0

    def assign(self, ref: ProblemRef) -> None:
        """Assign a problem to this runner."""
        if not self.in_flight:
            self.last_progress = time.monotonic()
        self.in_flight[ref] = None
        self.unsent.append(ref)

    def target(self, group_size: int) -> int:
        """How many problems it should have in flight."""
        return max(1, math.ceil(_WORK_PER_CAPACITY * self.capacity / group_size))


class RunnerPool:
    """Hands problems to runners.

    Args:
        calls: how to reach them.
        config: group sizes, sampling, and how long to wait for runners.
        seed: the seed of the run.
        evaluation: the settings of evaluation; None takes `config`.
        send_weights: sends the present weights to runners that have come back, and returns those
            that took them over, or None if they have to wait for the next sync.

    Attributes:
        weights_version: the version of the weights that the runners have; jobs carry it.
        lost: runners lost so far, by reason: `died`, `hung`, `failed`.
        busy_s: seconds that the engines have computed, summed over all of them.
    """

    def __init__(
        self,
        calls: RunnerCalls,
        config: DAPOSettings,
        *,
        seed: int,
        evaluation: DAPOSettings | None = None,
        send_weights: Callable[[Sequence[int]], Sequence[int] | None],
    ) -> None:
        self.weights_version = 0
        self.lost: Counter[str] = Counter()
        self.busy_s = 0.0
        self._calls = calls
        self._config = config
        self._evaluation = evaluation or config
        self._seed = seed
        self._send_weights = send_weights
        self._runners = {number: RunnerState() for number in calls.alive()}
        self._size = len(self._runners)
        shortest, longest = _SLICE_SECONDS
        self._slice_seconds = min(max(shortest, _SLICE_SECONDS_PER_RUNNER * self._size), longest)
        self._queue = ProblemQueue(config.max_problem_attempts)
        self._given_up: list[Group] = []  # failed groups that the next poll returns
        self._reason = "none has ever answered"
        self._alone_since: float | None = None
        self._back: set[int] = set()  # runners that answer again, without weights so far
        self._returned: list[int] = []

    @property
    def runners(self) -> list[int]:
        """Numbers of the runners that are in service."""
        return list(self._runners)

    @property
    def reachable(self) -> list[int]:
        """Runners in service, and runners that have come back and wait for weights."""
        return [*self._runners, *sorted(self._back)]

    @property
    def in_flight(self) -> int:
        """The number of problems whose groups have not come back."""
        waiting = len(self._queue) + len(self._given_up)
        return waiting + sum(len(runner.in_flight) for runner in self._runners.values())

    def ask(self, refs: Sequence[ProblemRef]) -> None:
        """Add problems to sample, behind those that were added before."""
        self._queue.add(refs)

    def poll(self) -> list[Group]:
        """Hand out problems, wait a little, and return the groups that have finished.

        Raises:
            EngineError: the local engine failed, or no runner is left and none comes back.
            RewardError: a reward function failed and `reward_failure` is `error`.
        """
        self._check_runners()
        self._hand_out()
        groups, self._given_up = self._given_up, []
        for number, runner in self._runners.items():
            if runner.in_flight and not runner.calling:
                self._call(number, runner)
        for number, reply in self._calls.replies():
            groups += self._take(number, reply)
        return groups

    def withdraw(self) -> tuple[list[Group], tuple[ProblemRef, ...]]:
        """Stop all work.

        Returns:
            The groups that have finished since the last poll, and the problems without a group, in
            the order of their positions.
        """
        groups = self._settle() + self._given_up
        self._given_up = []
        refs = self._queue.withdraw()
        refs += [ref for runner in self._runners.values() for ref in runner.in_flight]
        asked = [number for number, runner in self._runners.items() if runner.in_flight]
        for runner in self._runners.values():
            runner.in_flight.clear()
            runner.unsent.clear()
        for number, failure in self._calls.call(asked, "withdraw").failures.items():
            if number == LOCAL_RUNNER:
                raise EngineError(f"the engine failed: {failure.reason}")
            self._lose(number, "hung", "it did not stop its work")
        return groups, tuple(sorted(refs, key=lambda ref: ref.position))

    def serve(self, version: int, runners: Sequence[int]) -> None:
        """Note that some runners have new weights; the others are replaced.

        Args:
            version: the version of the weights, for all work from now on.
            runners: the runners among `reachable` that have them.
        """
        self.weights_version = version
        for number in set(self._runners) - set(runners):
            self._lose(number, "failed", "it did not take over new weights")
        self._take_in([number for number in runners if number in self._back])

    def take_returned(self) -> list[int]:
        """Runners that have come back since this was last asked."""
        returned, self._returned = self._returned, []
        return returned

    def _settle(self) -> list[Group]:
        """Wait until no call is in flight, and return what the calls bring."""
        groups: list[Group] = []
        while any(runner.calling for runner in self._runners.values()):
            for number, reply in self._calls.replies():
                groups += self._take(number, reply)
            self._check_runners()
        return groups

    # -- Work -----------------------------------------------------------------------------

    def _call(self, number: int, runner: RunnerState) -> None:
        """Tell a runner what is new, and ask for what it has finished."""
        evaluates = bool(runner.unsent) and runner.unsent[0].evaluation
        job = make_job(
            self._evaluation if evaluates else self._config,
            runner.unsent,
            seed=self._seed,
            weights_version=self.weights_version,
        )
        # The first call returns at once: it tells how much the engine computes at a time.
        seconds = 0.0 if runner.steps < 0 else self._slice_seconds
        runner.calling = self._calls.start(number, job, seconds)
        if runner.calling and job is not None:
            runner.unsent = [ref for ref in runner.unsent if ref not in job.refs]

    def _hand_out(self) -> None:
        """Give the first problems of the queue to the runners that have least to do."""
        size = self._config.group_size
        for runner in self._runners.values():
            if not runner.in_flight and (suspect := self._queue.next_suspect()):
                runner.assign(suspect)
        loads = [
            (len(runner.in_flight) / runner.target(size), number)
            for number, runner in self._runners.items()
            if len(runner.in_flight) < runner.target(size) and not self._has_suspect(runner)
        ]
        heapq.heapify(loads)
        while loads and (ref := self._queue.next()):
            _, number = heapq.heappop(loads)
            runner = self._runners[number]
            runner.assign(ref)
            if len(runner.in_flight) < runner.target(size):
                heapq.heappush(loads, (len(runner.in_flight) / runner.target(size), number))

    def _has_suspect(self, runner: RunnerState) -> bool:
        """Whether a runner works on a problem that has to be alone."""
        return len(runner.in_flight) == 1 and self._queue.is_suspect(next(iter(runner.in_flight)))

    def _take(self, number: int, reply: RunnerReply) -> list[Group]:
        """Take in a reply; returns its groups, each problem's only once."""
        runner = self._runners.get(number)
        if runner is None:  # it was lost meanwhile, and other runners have its problems
            return []
        runner.calling = False
        if reply.steps != runner.steps or reply.groups or not reply.unfinished:
            runner.steps, runner.last_progress = reply.steps, time.monotonic()
        self.busy_s += max(0.0, reply.busy_s - runner.busy_s)
        runner.busy_s, runner.capacity = reply.busy_s, reply.capacity
        groups = []
        for group in reply.groups:
            if group.ref in runner.in_flight:
                del runner.in_flight[group.ref]
                self._queue.resolve(group.ref)
                groups.append(group)
        if reply.error is not None:
            raise EngineError(f"runner {number} failed: {reply.error}")
        if reply.broken is not None and number == LOCAL_RUNNER:
            raise EngineError(f"the engine failed: {reply.broken}")
        if reply.broken is not None:
            self._lose(number, "failed", reply.broken)
        return groups

    # -- Runners that fail ------------------------------------------------------------------

    def _check_runners(self) -> None:
        """Take dead and hung runners out of service, and take in those that are back."""
        alive = set(self._calls.alive())
        now, patience = time.monotonic(), self._config.runner_timeout_s
        for number, runner in list(self._runners.items()):
            if number not in alive:
                self._lose(number, "died", "its process died")
            elif (
                number != LOCAL_RUNNER
                and runner.in_flight
                and now - runner.last_progress > patience
            ):
                self._lose(number, "hung", f"no step in runner_timeout_s={patience:g} s")
        if len(self._runners) < self._size:
            self._back |= set(self._calls.returned())
        self._back &= set(self._calls.alive())
        if self._back and (served := self._send_weights(sorted(self._back))) is not None:
            self._take_in(served)
        self._check_that_one_is_left()

    def _take_in(self, served: Sequence[int]) -> None:
        for number in served:
            logger.warning("runner %d is back", number)
            self._runners[number] = RunnerState()
            self._returned.append(number)
        for number in self._back.difference(served):
            logger.warning("runner %d is back, but does not take over weights", number)
            self._calls.kill(number)
        self._back.clear()

    def _lose(self, number: int, kind: str, reason: str) -> None:
        """Take a runner out of service: requeue its problems, and kill it if it still runs."""
        runner = self._runners.pop(number)
        self.lost[kind] += 1
        self._reason = reason
        logger.warning(
            "runner %d %s (%s); its %d problems are sampled again", number, kind, reason,
            len(runner.in_flight),
        )  # fmt: skip
        if kind != "died":
            self._calls.kill(number)
        limit = self._config.max_problem_attempts
        why = f"{limit} runners failed while they sampled it (max_problem_attempts={limit})"
        for ref in self._queue.ask_again(list(runner.in_flight)):
            self._given_up.append(failed_group(ref, f"{why}: {reason}", self.weights_version))

    def _check_that_one_is_left(self) -> None:
        if self._runners:
            self._alone_since = None
            return
        now = time.monotonic()
        self._alone_since = now if self._alone_since is None else self._alone_since
        patience = self._config.runner_restart_timeout_s
        if now - self._alone_since > patience:
            raise EngineError(
                f"no runner is left, and none came back in runner_restart_timeout_s="
                f"{patience:g} s; {self.in_flight} problems are unanswered. The last one: "
                f"{self._reason}. See the actors' logs, and RLlib's `restart_failed_env_runners` "
                "and `max_num_env_runner_restarts`"
            )
