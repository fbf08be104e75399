"""Calls to runners: to RLlib's local one, or to its remote ones, in the same words.

One call of `collect` is in flight per runner. A remote call that never returns is given up
by killing its actor; Ray starts it again and it is called once more when it answers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Protocol

import ray

from rllib_dapo.rollout.sampling_job import LOCAL_RUNNER, RunnerReply, SamplingJob

logger = logging.getLogger(__name__)

_COLLECT, _PING = "dapo collect", "dapo ping"
# How long to wait for replies at once: RLlib waits for *all* of them or this time.
_POLL_SECONDS = 0.02
_PING_SECONDS = 1.0


class RunnerCalls(Protocol):
    """What the pool needs of runners."""

    def alive(self) -> list[int]:
        """Numbers of the runners that can be called."""
        ...

    def start(self, runner: int, job: SamplingJob | None, seconds: float) -> bool:
        """Call `collect`; False if the runner cannot be called now."""
        ...

    def replies(self) -> list[tuple[int, RunnerReply]]:
        """Wait a little for calls of `collect`; what has come back."""
        ...

    def call(self, method: str, runners: Sequence[int], timeout: float, **kwargs: Any) -> list[int]:
        """Call a method of some runners and wait; the numbers of those that did it."""
        ...

    def kill(self, runner: int) -> None:
        """End a runner that does not answer, or cannot go on."""
        ...

    def returned(self) -> list[int]:
        """Runners that were lost and are back, without weights; does not wait."""
        ...


class LocalCalls:
    """RLlib's local runner: it works while its replies are waited for.

    Args:
        runner: the runner.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._asked: tuple[SamplingJob | None, float] | None = None

    def alive(self) -> list[int]:
        """It lives as long as this process."""
        return [LOCAL_RUNNER]

    def start(self, runner: int, job: SamplingJob | None, seconds: float) -> bool:
        """Note the call; it is made in `replies`."""
        if self._asked is not None:
            return False
        self._asked = (job, seconds)
        return True

    def replies(self) -> list[tuple[int, RunnerReply]]:
        """Make the call that was noted."""
        if self._asked is None:
            return []
        (job, seconds), self._asked = self._asked, None
        return [(LOCAL_RUNNER, self._runner.collect(job, seconds=seconds))]

    def call(self, method: str, runners: Sequence[int], timeout: float, **kwargs: Any) -> list[int]:
        """Call a method; whatever it raises is raised here."""
        getattr(self._runner, method)(**kwargs)
        return [LOCAL_RUNNER]

    def kill(self, runner: int) -> None:
        """There is nothing to start it again."""

    def returned(self) -> list[int]:
        """It never leaves."""
        return []


class RemoteCalls:
    """RLlib's remote runners.

    Args:
        env_runner_group: RLlib's group of them.
    """

    def __init__(self, env_runner_group: Any) -> None:
        self._group = env_runner_group
        self._pinged: dict[int, float] = {}
        self._gone: set[int] = set()

    def alive(self) -> list[int]:
        """Those that RLlib thinks healthy."""
        return list(self._group.healthy_worker_ids())

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
        """Replies that came within a moment; a dead runner is taken out of service."""
        if not self._group.num_in_flight_async_reqs(tag=_COLLECT):
            time.sleep(_POLL_SECONDS)  # or who waits for a runner would take its processor
        return list(
            self._group.fetch_ready_async_reqs(tags=_COLLECT, timeout_seconds=_POLL_SECONDS)
        )

    def call(self, method: str, runners: Sequence[int], timeout: float, **kwargs: Any) -> list[int]:
        """Call a method of some runners and wait; the numbers of those that did it."""
        if not runners:
            return []
        # One call per tag may be in flight. RLlib's own `set_state` of its setup has the
        # method's name as its tag, and would have ours dropped.
        tag = f"dapo {method}"
        sent = [
            runner
            for runner in runners
            if self._group.foreach_env_runner_async(
                method, tag=tag, kwargs=kwargs, remote_worker_ids=[runner]
            )
        ]
        waiting, done = set(sent), []
        until = time.monotonic() + timeout
        while waiting and time.monotonic() < until:
            for runner, _ in self._group.fetch_ready_async_reqs(
                tags=tag, timeout_seconds=_POLL_SECONDS
            ):
                waiting.discard(runner)
                done.append(runner)
            waiting &= set(self.alive())
        return done

    def kill(self, runner: int) -> None:
        """Kill its process; Ray starts it again if its settings allow."""
        manager = self._group._worker_manager
        ray.kill(manager.actors()[runner], no_restart=False)
        manager.set_actor_state(runner, healthy=False)

    def returned(self) -> list[int]:
        """Runners that answer again; each lost one is asked about once a second."""
        manager = self._group._worker_manager  # its own call logs every ping that fails
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
        """Ray starts it no more: it has been too often, or its start failed."""
        self._gone.add(runner)
        logger.error(
            "runner %d does not come back; the others go on without it. See "
            "`max_num_env_runner_restarts`, and its log. %s", runner, reason,
        )  # fmt: skip
