"""From requests to scored groups: an engine that samples, and scorers behind it.

    submit ─> engine.step() ─> finished request ─> score ─> collect

With its own threads, the pipeline steps the engine as long as there is work and scores finished
requests meanwhile; neither waits for the other, nor for the caller of `collect`. Without threads,
both happen inside `collect`, one step at a time, so that the order of the results depends on the
requests only. Any other use of the engine happens between two steps.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from rllib_dapo.errors import EngineError
from rllib_dapo.model.device import use_threads
from rllib_dapo.rollout.engine.base import FinishedRequest, InferenceEngine
from rllib_dapo.types import Group

T = TypeVar("T")
Command = Callable[[InferenceEngine], Any]
Score = Callable[[FinishedRequest], Group | None]
"""A function that makes a group of a finished request, or None if it was withdrawn."""
FinishedGroup = tuple[str, Group]
"""The id of a request, and the group it became."""

# Groups that finish within this time travel in one reply.
_GATHER_SECONDS = 0.02


class CompletionPipeline:
    """Owns an engine, has requests sampled and scores what is finished.

    Args:
        engine: the engine; no one else may use it from now on.
        score: makes a group of each finished request.
        own_threads: whether the pipeline has threads; False works inside `collect`.
        cpu_threads: the number of CPU threads of the engine; None leaves that of the process.
        scorers: how many of the pipeline's own threads call `score` at once. With more than
            one, groups need not come out in the order in which their requests finished.

    Attributes:
        engine: the engine.
        steps: the number of engine steps so far.
        busy_s: seconds spent in these steps.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        score: Score,
        *,
        own_threads: bool,
        cpu_threads: int | None = None,
        scorers: int = 1,
    ) -> None:
        self.steps = 0
        self.busy_s = 0.0
        self.engine = engine
        self._score = score
        self._cpu_threads = cpu_threads
        self._commands: queue.SimpleQueue[tuple[Command, Future[Any]] | None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[FinishedRequest | None] = queue.SimpleQueue()
        self._groups: queue.SimpleQueue[FinishedGroup | Exception] = queue.SimpleQueue()
        self._broken: Exception | None = None
        self._score_error: Exception | None = None
        self._threads: list[threading.Thread] = []
        if own_threads:
            for target in (self._run_engine, *[self._run_scorer] * scorers):
                self._threads.append(threading.Thread(target=target, daemon=True))
                self._threads[-1].start()

    def between_steps(self, command: Callable[[InferenceEngine], T]) -> T:
        """Run a command on the engine between two steps, and return its result.

        Raises:
            EngineError: the engine failed before.
            Exception: whatever `command` raises.
        """
        if not self._threads:
            return command(self.engine)
        future: Future[T] = Future()
        self._commands.put((command, future))
        return future.result()

    def collect(self, seconds: float) -> list[FinishedGroup]:
        """Return the groups that are ready, waiting up to `seconds` for the first one.

        Requests that were aborted after they had finished are among them.

        Raises:
            EngineError: the engine failed; the pipeline cannot be used any more.
            Exception: whatever `score` raised, after the groups that were ready before.
        """
        self._raise_score_error()
        until = time.monotonic() + seconds
        groups = self._wait_until(until) if self._threads else self._work_until(until)
        if not groups:
            self._raise_score_error()
        if self._broken is not None and not groups:
            reason = f"{type(self._broken).__name__}: {self._broken}"
            raise EngineError(reason) from self._broken
        return groups

    def _raise_score_error(self) -> None:
        if self._score_error is not None:
            raise self._score_error

    def close(self) -> None:
        """Stop the threads; the engine is left as it is."""
        if self._threads:
            self._commands.put(None)
            for thread in self._threads:
                thread.join(timeout=10.0)

    # -- In the caller's thread -----------------------------------------------------------

    def _work_until(self, until: float) -> list[FinishedGroup]:
        groups: list[FinishedGroup] = []
        use_threads(self._cpu_threads)
        while self.engine.num_in_flight and not groups and self._broken is None:
            for request in self._step():
                try:
                    group = self._score(request)
                except Exception as error:  # noqa: BLE001 - raised when the groups before it are out
                    self._score_error = error
                    return groups
                if group is not None:
                    groups.append((request.request_id, group))
            if time.monotonic() >= until:  # at least one step was made, however busy the machine is
                break
        return groups

    def _wait_until(self, until: float) -> list[FinishedGroup]:
        groups: list[FinishedGroup] = []
        while (left := until - time.monotonic()) > 0:
            try:
                item = self._groups.get(timeout=min(left, 0.5))
            except queue.Empty:
                if groups or self._broken is not None:
                    break
                continue
            if isinstance(item, Exception):
                self._score_error = item
                break
            groups.append(item)
            until = min(until, time.monotonic() + _GATHER_SECONDS)
        return groups

    # -- In threads of their own ----------------------------------------------------------

    def _run_engine(self) -> None:
        use_threads(self._cpu_threads)
        while True:
            idle = self._broken is not None or not self.engine.num_in_flight
            try:
                item = self._commands.get(block=idle)
            except queue.Empty:
                for request in self._step():
                    self._finished.put(request)
                continue
            if item is None:
                self._finished.put(None)
                return
            self._execute(*item)

    def _execute(self, command: Command, future: Future[Any]) -> None:
        try:
            if self._broken is not None:
                raise EngineError(f"the engine failed before: {self._broken}")
            future.set_result(command(self.engine))
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            future.set_exception(error)

    def _run_scorer(self) -> None:
        while (request := self._finished.get()) is not None:
            try:
                group = self._score(request)
            except Exception as error:  # noqa: BLE001 - raised by `collect`
                self._groups.put(error)
            else:
                if group is not None:
                    self._groups.put((request.request_id, group))
        self._finished.put(None)  # for the next scorer

    def _step(self) -> list[FinishedRequest]:
        started = time.perf_counter()
        try:
            return self.engine.step()
        except Exception as error:  # noqa: BLE001 - raised by `collect`
            self._broken = error
            return []
        finally:
            self.steps += 1
            self.busy_s += time.perf_counter() - started
