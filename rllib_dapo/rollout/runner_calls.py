"""Calls to runners: RLlib's local one and its remote ones, through the same interface.

There are two kinds of calls. `collect` samples: `start` begins it and `replies` brings the
results, with one such call in flight per runner. Everything else goes through `call`, which
waits for all runners and says of each what it returned or why it did not.

A remote call that never returns is given up by killing its actor. Ray starts the actor again,
and it is used again when it answers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray

from rllib_dapo.rollout.sampling_job import LOCAL_RUNNER, RunnerReply, SamplingJob

logger = logging.getLogger(__name__)

_COLLECT, _PING = "dapo collect", "dapo ping"  # RLlib's tags of our calls
_POLL_SECONDS = 0.02  # RLlib waits for all replies or for this time, not for the first reply
_PING_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class CallFailure:
    """Why a runner returned nothing.

    Attributes:
        reason: one line.
        lost: True if the runner is dead or silent, False if it answered with an error.
    """

    reason: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class CallResults:
    """The results of one call to several runners; each runner is in one of the two mappings.

    Attributes:
        values: what each runner returned.
        failures: why the others returned nothing.
    """

    values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, CallFailure] = field(default_factory=dict)


def wait_for_calls(
    calls: Mapping[int, Any], *, timeout_s: float, until_failure: bool = False
) -> CallResults:
    """Wait for calls to actors, from any process of the cluster.

    Args:
        calls: Ray's object references by runner.
        timeout_s: how long to wait for the slowest, in seconds.
        until_failure: return after the first failure. The results then lack the runners whose
            calls are still in flight.
    """
    results = CallResults()
    waiting = {reference: runner for runner, reference in calls.items()}
    until = time.monotonic() + timeout_s
    while waiting and not (until_failure and results.failures):
        left = max(0.0, until - time.monotonic())
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=left)
        if not ready:
            late = CallFailure(f"no answer within runner_timeout_s={timeout_s:g}", lost=True)
            results.failures.update(dict.fromkeys(waiting.values(), late))
            break
        runner = waiting.pop(ready[0])
        try:
            results.values[runner] = ray.get(ready[0])
        except Exception as error:  # noqa: BLE001 - whatever the actor raised, or its death
            results.failures[runner] = _failure(error)
    in_order = {runner: results.values[runner] for runner in calls if runner in results.values}
    return CallResults(in_order, results.failures)


def _failure(error: Exception) -> CallFailure:
    cause = getattr(error, "cause", None) or error  # Ray wraps what the actor's method raised
    first_line = (str(cause).splitlines() or [""])[0]
    lost = isinstance(error, ray.exceptions.RayActorError)
    return CallFailure(f"{type(cause).__name__}: {first_line}", lost)


class RunnerCalls(Protocol):
    """What the rest of the package needs of runners, which it knows by their numbers."""

    def alive(self) -> list[int]:
        """The runners that can be called."""
        ...

    def handles(self) -> Mapping[int, Any]:
        """Ray's actor handles of these runners; empty if the runner is in this process."""
        ...

    def start(self, runner: int, job: SamplingJob | None, seconds: float) -> bool:
        """Call `collect` without waiting; returns False if the runner cannot be called now."""
        ...

    def replies(self) -> list[tuple[int, RunnerReply]]:
        """Wait a moment for calls of `collect`, and return those that have come back."""
        ...

    def call(self, runners: Sequence[int], method: str, *arguments: Any) -> CallResults:
        """Call a method of some runners at the same time, and wait for all of them.

        Args:
            runners: their numbers; those that are not alive are among the failures.
            method: the name of a method of `DAPOEnvRunner`.
            *arguments: the same for all. Ray's object references arrive as their values.
        """
        ...

    def call_engines(self, runners: Sequence[int], method: str, *arguments: Any) -> CallResults:
        """Call a method of the runners' engines between two steps; see `call`.

        Args:
            runners: their numbers.
            method: the name of a method of the engine, or of a part of it (`weights.start`).
            *arguments: the same for all.
        """
        return self.call(runners, "call_engine", method, *arguments)

    def kill(self, runner: int) -> None:
        """End a runner that does not answer or cannot go on."""
        ...

    def returned(self) -> list[int]:
        """Runners that were lost and answer again, still without weights; does not wait."""
        ...


class LocalCalls(RunnerCalls):
    """Calls to RLlib's local runner, which works while its replies are waited for.

    Args:
        runner: the runner.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._started: tuple[SamplingJob | None, float] | None = None

    def alive(self) -> list[int]:
        """The local runner lives as long as this process."""
        return [LOCAL_RUNNER]

    def handles(self) -> Mapping[int, Any]:
        """Return no handle, because the local runner is not an actor."""
        return {}

    def start(self, runner: int, job: SamplingJob | None, seconds: float) -> bool:
        """Remember the call; `replies` makes it."""
        if self._started is not None:
            return False
        self._started = (job, seconds)
        return True

    def replies(self) -> list[tuple[int, RunnerReply]]:
        """Make the call that `start` remembered."""
        if self._started is None:
            return []
        (job, seconds), self._started = self._started, None
        return [(LOCAL_RUNNER, self._runner.collect(job, seconds=seconds))]

    def call(self, runners: Sequence[int], method: str, *arguments: Any) -> CallResults:
        """Call a method if the local runner is among those asked for."""
        if LOCAL_RUNNER not in runners:
            return CallResults()
        try:
            return CallResults({LOCAL_RUNNER: getattr(self._runner, method)(*arguments)})
        except Exception as error:  # noqa: BLE001 - reported like an error of a remote runner
            return CallResults(failures={LOCAL_RUNNER: _failure(error)})

    def kill(self, runner: int) -> None:
        """Do nothing, because nothing would start the local runner again."""

    def returned(self) -> list[int]:
        """Return an empty list, because the local runner is never lost."""
        return []


class RemoteCalls(RunnerCalls):
    """Calls to RLlib's remote runners.

    Args:
        env_runner_group: RLlib's group of them.
        timeout_s: how long a runner may take for one `call`, in seconds.
    """

    def __init__(self, env_runner_group: Any, timeout_s: float) -> None:
        self._group = env_runner_group
        self._timeout_s = timeout_s
        self._pinged: dict[int, float] = {}
        self._gone: set[int] = set()

    def alive(self) -> list[int]:
        """The runners that RLlib has marked as healthy."""
        return list(self._group.healthy_worker_ids())

    def handles(self) -> Mapping[int, Any]:
        """Ray's actor handles of the runners that are alive."""
        actors = self._group._worker_manager.actors()
        return {runner: actors[runner] for runner in self.alive()}

    def start(self, runner: int, job: SamplingJob | None, seconds: float) -> bool:
        """Call `collect` without waiting."""
        sent = self._group.foreach_env_runner_async(
            "collect",
            tag=_COLLECT,
            kwargs={"job": job, "seconds": seconds},
            remote_worker_ids=[runner],
        )
        return bool(sent)

    def replies(self) -> list[tuple[int, RunnerReply]]:
        """Return replies that come within a moment; RLlib marks a dead runner as unhealthy."""
        if not self._group.num_in_flight_async_reqs(tag=_COLLECT):
            time.sleep(_POLL_SECONDS)  # a caller that loops leaves the CPU to the runners
        return list(
            self._group.fetch_ready_async_reqs(tags=_COLLECT, timeout_seconds=_POLL_SECONDS)
        )

    def call(self, runners: Sequence[int], method: str, *arguments: Any) -> CallResults:
        """Call a method of some runners, and mark those that are lost as unhealthy.

        RLlib's own calls to many actors do not say which result is whose, and end an actor
        whose method raises. So the actors are called directly here.
        """
        handles = self.handles()
        calls = {
            runner: getattr(handles[runner], method).remote(*arguments)
            for runner in runners
            if runner in handles
        }
        results = wait_for_calls(calls, timeout_s=self._timeout_s)
        for runner in runners:
            if runner not in handles:
                results.failures[runner] = CallFailure("its process died", lost=True)
        for runner, failure in results.failures.items():
            if failure.lost:
                self._group._worker_manager.set_actor_state(runner, healthy=False)
        return results

    def kill(self, runner: int) -> None:
        """Kill a runner's process; Ray starts it again if its settings allow."""
        manager = self._group._worker_manager
        ray.kill(manager.actors()[runner], no_restart=False)
        manager.set_actor_state(runner, healthy=False)

    def returned(self) -> list[int]:
        """Return runners that answer again; each lost one is pinged once a second."""
        manager = self._group._worker_manager  # the group's own call logs every failed ping
        results = list(manager.fetch_ready_async_reqs(tags=_PING, mark_healthy=True))
        for result in results:
            if isinstance(result.get(), ray.exceptions.ActorDiedError):
                self._note_gone(result.actor_id, result.get())
        now = time.monotonic()
        for runner in set(manager.actor_ids()) - set(self.alive()) - self._gone:
            if now - self._pinged.get(runner, 0.0) > _PING_SECONDS:
                self._pinged[runner] = now
                manager.foreach_actor_async(
                    "ping", tag=_PING, healthy_only=False, remote_actor_ids=[runner]
                )
        return [result.actor_id for result in results if result.ok]

    def _note_gone(self, runner: int, reason: BaseException) -> None:
        """Remember that Ray does not start a runner again, and log it."""
        self._gone.add(runner)
        logger.error(
            "runner %d does not come back; the others go on without it. See "
            "`max_num_env_runner_restarts`, and its log. %s", runner, reason,
        )  # fmt: skip
