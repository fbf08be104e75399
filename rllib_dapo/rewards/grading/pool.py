"""Compare trees in worker processes with limits of time and memory, and a cache.

Numbers and rational expressions are compared in the calling process. Roots, functions and
powers have no bound on what they cost (`9^(9^(9^9))` is a closed form, too), so they are
compared in workers. No process is started before the first such answer.
"""

from __future__ import annotations

import atexit
import difflib
import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from rllib_dapo.errors import SettingError
from rllib_dapo.rewards.grading.pool_dispatcher import Dispatcher, Job
from rllib_dapo.rewards.grading.trees import Tree

Comparison = Literal["same", "different", "timed_out"]
CACHE_SIZE: Final = 50_000
"""Outcomes remembered per pool; about 10 MB."""
SMALLEST_MEMORY: Final = 128
"""Least address space of a worker, MiB: Python and mpmath take about 60."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Limits of grading.

    Attributes:
        workers: how many quick comparisons are made at a time, each in its own process.
        seconds: how long a comparison may go on, by the wall clock, once it has used 0.05 s
            of CPU time; beyond that its answer is wrong.
        memory_mib: the address space of a worker, MiB; beyond it the answer is wrong.
    """

    workers: int = 2
    seconds: float = 2.0
    memory_mib: int = 512

    def __post_init__(self) -> None:
        if not isinstance(self.workers, int) or self.workers < 1:
            raise SettingError(f"workers={self.workers!r}: use a whole number from 1", "workers")
        if not 0 < self.seconds <= 3600:
            raise SettingError(f"seconds={self.seconds}: use more than 0, up to 3600", "seconds")
        if self.memory_mib < SMALLEST_MEMORY:
            raise SettingError(
                f"memory_mib={self.memory_mib}: a worker needs {SMALLEST_MEMORY} MiB or more",
                "memory_mib",
            )


def read_limits(values: Mapping[str, Any] | None, setting: str) -> PoolSettings:
    """Read limits from a mapping, such as a part of `env_config`; the rest are the defaults.

    Args:
        values: any of `workers`, `seconds` and `memory_mib`; None for none of them.
        setting: the name of the mapping in an error message.

    Raises:
        SettingError: an unknown key (the message suggests the nearest) or an impossible value.
    """
    known = {field.name for field in fields(PoolSettings)}
    for key in values or {}:
        if key not in known:
            near = difflib.get_close_matches(str(key), sorted(known), n=1, cutoff=0.0)
            raise SettingError(
                f"{setting}.{key}: no such setting; use one of {', '.join(sorted(known))}"
                f" (did you mean {near[0]!r}?)",
                f"{setting}.{key}",
            )
    try:
        return PoolSettings(**(values or {}))
    except SettingError as error:
        raise SettingError(f"{setting}.{error}", f"{setting}.{error.setting}") from error


class WorkerPool:
    """Compares pairs of trees. Any number of threads may use it, also after a fork.

    Args:
        settings: the limits.
    """

    def __init__(self, settings: PoolSettings | None = None) -> None:
        self.settings = settings or PoolSettings()
        self._renew()

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._dispatcher: Dispatcher | None = None
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._asked: dict[bytes, Future[str]] = {}

    def compare(self, pairs: Sequence[tuple[Tree, Tree]]) -> list[Comparison]:
        """Say for each pair of an answer and a ground truth whether they are the same.

        All pairs are in flight at once. A comparison that hangs delays the others by no more
        than 0.05 s of CPU time. A comparison that exceeds the limits is `timed_out`.

        Raises:
            DAPOError: the workers cannot be started.
        """
        requests = [json.dumps(pair).encode() for pair in pairs]
        keys = [hashlib.blake2b(request, digest_size=16).digest() for request in requests]
        waiting: dict[bytes, str | Future[str]] = {}
        jobs = []
        with self._lock:
            for key, request in zip(keys, requests, strict=True):
                found = self._known.get(key) or self._asked.get(key) or waiting.get(key)
                if found is None:
                    job = Job(request)
                    jobs.append(job)
                    found = self._asked[key] = job.future
                waiting[key] = found
            while jobs and not self._start().submit(jobs):
                self._dispatcher = None
        try:
            results = {
                key: found if isinstance(found, str) else found.result()
                for key, found in waiting.items()
            }
        finally:
            with self._lock:
                self._remember(waiting)
        return [results[key] for key in keys]  # type: ignore[misc]

    def close(self) -> None:
        """End the processes. The next comparison starts them again."""
        with self._lock:
            dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            dispatcher.close()

    def pids(self) -> list[int]:
        """The pids of the live processes: first the server that forks workers, then workers."""
        return [] if self._dispatcher is None else self._dispatcher.pids()

    def forget(self) -> None:
        """Start anew in the child of a fork: the processes belong to the parent."""
        if self._dispatcher is not None:
            self._dispatcher.forget()
        self._renew()

    def _start(self) -> Dispatcher:
        if self._dispatcher is None or not self._dispatcher.is_alive():
            limits = self.settings
            self._dispatcher = Dispatcher(limits.workers, limits.seconds, limits.memory_mib)
            self._dispatcher.start()
        return self._dispatcher

    def _remember(self, waiting: dict[bytes, str | Future[str]]) -> None:
        for key, found in waiting.items():
            if isinstance(found, str):
                if key in self._known:
                    self._known.move_to_end(key)
            elif found.done():
                if self._asked.get(key) is found:
                    del self._asked[key]
                if found.exception() is None:
                    self._known[key] = found.result()
        while len(self._known) > CACHE_SIZE:
            self._known.popitem(last=False)


_pools: dict[PoolSettings, WorkerPool] = {}
_lock = threading.Lock()


def shared_pool(settings: PoolSettings | None = None) -> WorkerPool:
    """Give this process's pool with these limits; equal limits give the same pool."""
    settings = settings or PoolSettings()
    with _lock:
        return _pools.setdefault(settings, WorkerPool(settings))


def _close_all() -> None:
    for pool in list(_pools.values()):
        pool.close()


def _forget_all() -> None:
    global _lock  # noqa: PLW0603 - a thread that the child lacks may hold the lock
    _lock = threading.Lock()
    for pool in list(_pools.values()):
        pool.forget()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)
