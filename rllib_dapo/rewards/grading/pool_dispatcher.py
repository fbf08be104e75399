"""The thread that hands comparisons to worker processes and kills those that hang.

Only this thread touches processes and sockets; all other threads wait for a future. Signals
are not used, so that grading works in every thread.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rllib_dapo.errors import DAPOError
from rllib_dapo.rewards.grading.pool_server import DIFFERENT, LENGTH, OVER_LIMIT, PID, READY, SAME

PATIENCE: Final = 0.05
"""CPU seconds after which a comparison counts as slow, and no longer holds up others: a
hundred times what comparisons usually need."""
LANES: Final = 16
"""The most workers that may be busy with slow comparisons, at low priority, beside the others."""
STARVED: Final = 5
"""How many times the limit a comparison may wait for its first `PATIENCE` of CPU time."""
_START_SECONDS = 60
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "1", "LD_PRELOAD": ""}
_OUTCOMES = {SAME: "same", DIFFERENT: "different", OVER_LIMIT: "timed_out"}


@dataclass(eq=False)
class Job:
    """A comparison to be made.

    Attributes:
        request: two trees as JSON.
        future: receives `same`, `different` or `timed_out`.
        attempts: how many workers have died during this comparison.
    """

    request: bytes
    future: Future[str] = field(default_factory=Future)
    attempts: int = 0


@dataclass(eq=False)
class _Worker:
    connection: socket.socket
    pid: int
    job: Job | None = None
    started: float = 0.0  # wall clock; of a slow job, when it became slow
    cpu_started: float = 0.0
    slow: bool = False

    def cpu_used(self) -> float | None:
        """CPU seconds that the job has used; None if the process has ended."""
        try:
            return _cpu_clock(self.pid) - self.cpu_started
        except OSError:
            return None


def _cpu_clock(pid: int) -> float:
    """The CPU seconds of a process: Linux makes the clock's number from its pid so."""
    return time.clock_gettime((~pid << 3) | 2)


class Dispatcher(threading.Thread):
    """The thread that owns the workers.

    Args:
        workers: how many quick comparisons are made at a time.
        seconds: the limit of a slow comparison, by the wall clock.
        memory_mib: the address space of a worker, MiB.
    """

    def __init__(self, workers: int, seconds: float, memory_mib: int) -> None:
        super().__init__(name="rllib_dapo-grading", daemon=True)
        self._limits = (workers, seconds, memory_mib)
        self._quick = min(PATIENCE, seconds)
        self._fresh: deque[Job] = deque()
        self._late: deque[Job] = deque()  # slow jobs without a worker; no fresh job waits for them
        self._workers: list[_Worker] = []
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._wake, self._woken = socket.socketpair()
        for end in (self._wake, self._woken):
            end.setblocking(False)
        self._closing = self._ended = False
        self._lock = threading.Lock()  # so that no job is queued after the last look

    # -- Called by other threads

    def submit(self, jobs: list[Job]) -> bool:
        """Queue comparisons; returns False, and queues none, if the thread has ended."""
        with self._lock:
            if self._ended:
                return False
            self._fresh.extend(jobs)
        self._ring()
        return True

    def close(self) -> None:
        """End the workers and the thread."""
        self._closing = True
        self._ring()
        self.join()

    def forget(self) -> None:
        """Close in the child of a fork what belongs to the parent."""
        for end in (self._wake, self._woken, self._control, *(w.connection for w in self._workers)):
            if end is not None:
                end.close()
        if self._server is not None:
            self._server.returncode = 0  # only the parent can wait for it

    def pids(self) -> list[int]:
        """The pids of the live processes: first the server, then the workers."""
        return [p.pid for p in (self._server, *self._workers) if p is not None]

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake.send(b".")

    # -- The thread

    def run(self) -> None:
        """Serve until closed; an error that ends the thread is raised in all waiting futures."""
        try:
            while not self._closing:
                self._serve()
        except BaseException as error:  # noqa: BLE001 - no future may stay without a result
            self._fail(error)
        finally:
            self._stop_server()
            with self._lock:
                self._ended = True
            self._fail(DAPOError("the pool of grading workers was closed"))

    def _serve(self) -> None:
        """One turn: hand out jobs, wait for a result or a clock, collect."""
        self._hand_out()
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for worker in self._workers:
                selector.register(worker.connection, selectors.EVENT_READ, worker)
            events = selector.select(self._patience_left())
        for key, _ in events:
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            else:
                self._collect(key.data)
        self._check_clocks()

    def _hand_out(self) -> None:
        while self._fresh:
            idle = next((w for w in self._workers if w.job is None), None)
            if idle is None:
                if sum(not w.slow for w in self._workers) >= self._limits[0]:
                    break
                idle = self._hire()
            self._give(idle, self._fresh.popleft())
        while self._late and sum(w.slow for w in self._workers) < LANES:
            worker = self._hire()
            self._slow_down(worker)
            self._give(worker, self._late.popleft())

    def _give(self, worker: _Worker, job: Job) -> None:
        worker.job, worker.started = job, time.monotonic()
        with contextlib.suppress(OSError):
            worker.cpu_started = _cpu_clock(worker.pid)
        with contextlib.suppress(OSError):  # `_collect` notices that a worker has died
            worker.connection.sendall(LENGTH.pack(len(job.request)) + job.request)

    def _patience_left(self) -> float | None:
        """Seconds until the next clock can run out; None if none runs."""
        now = time.monotonic()
        left = [
            worker.started + self._limits[1] - now
            if worker.slow
            else self._quick - (worker.cpu_used() or 0.0)
            for worker in self._workers
            if worker.job is not None
        ]
        return max(0.001, min(left)) if left else None

    def _collect(self, worker: _Worker) -> None:
        try:
            verdict = worker.connection.recv(1)
        except OSError:
            verdict = b""
        job, worker.job = worker.job, None
        if verdict in _OUTCOMES and job is not None:
            job.future.set_result(_OUTCOMES[verdict])
            if worker.slow or verdict == OVER_LIMIT:
                self._dismiss(worker)
            return
        self._dismiss(worker)  # the worker died
        if job is not None:
            job.attempts += 1
            if job.attempts > 1:
                job.future.set_result("timed_out")
            else:  # the job may not be the cause
                self._fresh.appendleft(job)

    def _check_clocks(self) -> None:
        """End what is beyond the limits, and move what is slow out of the way.

        A comparison first gets `PATIENCE` seconds of CPU time, however long they take on a
        busy machine: a process that the machine starves is no reason for a verdict. Then it
        is slow, and from there on the wall clock decides.
        """
        now = time.monotonic()
        for worker in [w for w in self._workers if w.job is not None]:
            job, elapsed, used = worker.job, now - worker.started, worker.cpu_used()
            assert job is not None  # noqa: S101 - just selected
            if elapsed >= self._limits[1] * (1 if worker.slow else STARVED):
                self._dismiss(worker)
                job.future.set_result("timed_out")
            elif not worker.slow and used is not None and used >= self._quick:
                if sum(w.slow for w in self._workers) < LANES:
                    self._slow_down(worker)
                else:
                    self._dismiss(worker)
                    self._late.append(job)

    def _slow_down(self, worker: _Worker) -> None:
        worker.slow, worker.started = True, time.monotonic()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, worker.pid, 19)

    # -- Processes

    def _hire(self) -> _Worker:
        """Get a new worker, from a new server if the old one has died."""
        for _ in range(2):
            if self._control is None:
                self._start_server()
            assert self._control is not None  # noqa: S101 - started
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    socket.send_fds(self._control, [b"F"], [theirs.fileno()])
                    self._workers.append(_Worker(ours, self._answer()))
                    return self._workers[-1]
                except OSError:
                    ours.close()
                    self._stop_server()
        raise DAPOError("the process that grading workers come from has died twice")

    def _dismiss(self, worker: _Worker) -> None:
        """Kill a worker; the server reaps it."""
        if worker in self._workers:
            self._workers.remove(worker)
        worker.connection.close()
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.sendall(b"B" + PID.pack(worker.pid))
                self._answer()

    def _answer(self) -> int:
        assert self._control is not None  # noqa: S101 - it was just written to
        data = self._control.recv(PID.size, socket.MSG_WAITALL)
        if len(data) < PID.size:
            raise ConnectionError("the server has died")
        return int(PID.unpack(data)[0])

    def _start_server(self) -> None:
        script = Path(__file__).with_name("pool_server.py")
        ours, theirs = socket.socketpair()
        arguments = [str(theirs.fileno()), *map(str, self._limits[1:])]
        with theirs, tempfile.TemporaryFile() as errors:
            self._server = subprocess.Popen(
                [sys.executable, "-P", str(script), *arguments],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=os.environ | _ENVIRONMENT,
                start_new_session=True,  # Ctrl-C is for the trainer, which then closes the pool
            )
            self._control = ours
            theirs.close()
            ours.settimeout(_START_SECONDS)
            try:
                ready = ours.recv(1)
            except OSError:
                ready = b""
            if ready != READY:
                self._stop_server()
                errors.seek(0)
                tail = errors.read()[-2000:].decode(errors="replace").strip()
                raise DAPOError(
                    "answers that are not numbers cannot be compared: the worker process did not"
                    f" start ({sys.executable} {script}); it said: {tail or 'nothing'}"
                )

    def _stop_server(self) -> None:
        for worker in self._workers:
            if worker.job is not None:
                self._fresh.append(worker.job)
            worker.connection.close()
        self._workers.clear()
        if self._control is not None:
            self._control.close()  # the server then kills its workers and ends
            self._control = None
        server, self._server = self._server, None
        if server is not None:
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    def _fail(self, error: BaseException) -> None:
        busy = [worker.job for worker in self._workers if worker.job is not None]
        for job in (*busy, *self._fresh, *self._late):
            if not job.future.done():
                job.future.set_exception(error)
