"""Calls to the engines of RLlib's runners, with an answer or a reason from each.

RLlib's own calls to many actors do not say whose result is whose, and end an actor whose
method raises; here a runner that refuses an update says why.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from rllib_dapo.algorithm.weight_sync.interface import Answers
from rllib_dapo.rollout.sampling_job import LOCAL_RUNNER


class RunnerEngines:
    """The engines of an `EnvRunnerGroup`.

    Args:
        group: RLlib's group; its local runner has the engine when there are no remote ones.
        timeout_s: a runner that takes longer for one call has failed.
        only: numbers of the runners meant; None: all that RLlib thinks healthy.
    """

    def __init__(self, group: Any, timeout_s: float, only: Sequence[int] | None = None) -> None:
        self._group = group
        self._timeout_s = timeout_s
        self._only = only

    def ids(self) -> list[int]:
        """Their numbers."""
        if self._group.num_remote_workers() == 0:
            return [LOCAL_RUNNER]
        healthy = self._group.healthy_worker_ids()
        return [runner for runner in healthy if self._only is None or runner in self._only]

    def handles(self) -> Mapping[int, Any]:
        """Ray's actor handles by number."""
        if self._group.num_remote_workers() == 0:
            return {}
        actors = self._group._worker_manager.actors()
        return {runner: actors[runner] for runner in self.ids()}

    def call(self, method: str, *arguments: Any, only: Sequence[int] | None = None) -> Answers:
        """Call a method of their engines at once and wait for all."""
        ids = [runner for runner in self.ids() if only is None or runner in only]
        if ids == [LOCAL_RUNNER]:
            return _call_local(self._group.local_env_runner, method, arguments)
        handles = self.handles()
        return call_engines(
            {i: handles[i] for i in ids}, method, *arguments, timeout_s=self._timeout_s
        )


def call_engines(
    handles: Mapping[int, Any],
    method: str,
    *arguments: Any,
    timeout_s: float,
    until_failure: bool = False,
) -> Answers:
    """Call a method of several runners' engines, from any process of the cluster.

    Args:
        handles: Ray's actor handles by the runner's number.
        method: of the engine.
        *arguments: the same for all.
        timeout_s: how long to wait for the slowest.
        until_failure: see `collect`.
    """
    calls = {
        runner: handle.call_engine.remote(method, *arguments) for runner, handle in handles.items()
    }
    return collect(calls, timeout_s=timeout_s, until_failure=until_failure)


def collect(calls: Mapping[int, Any], *, timeout_s: float, until_failure: bool = False) -> Answers:
    """Wait for calls; what came back, or why it did not, by runner.

    Args:
        calls: Ray's object references by runner.
        timeout_s: how long to wait for the slowest.
        until_failure: do not wait for others after the first failure; they are in neither.
    """
    answers = Answers()
    waiting = {reference: runner for runner, reference in calls.items()}
    until = time.monotonic() + timeout_s
    while waiting and not (until_failure and answers.failures):
        left = max(0.0, until - time.monotonic())
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=left)
        if not ready:
            late = f"no answer within runner_timeout_s={timeout_s:g}"
            answers.failures.update(dict.fromkeys(waiting.values(), late))
            answers.lost.update(waiting.values())
            break
        runner = waiting.pop(ready[0])
        try:
            answers.values[runner] = ray.get(ready[0])
        except Exception as error:  # noqa: BLE001 - whatever the actor raised, or its death
            if isinstance(error, ray.exceptions.RayActorError):
                answers.lost.add(runner)
            answers.failures[runner] = _reason(error)
    in_order = {runner: answers.values[runner] for runner in calls if runner in answers.values}
    return Answers(in_order, answers.failures, answers.lost)


def _call_local(runner: Any, method: str, arguments: Sequence[Any]) -> Answers:
    here = [ray.get(a) if isinstance(a, ray.ObjectRef) else a for a in arguments]
    try:
        return Answers({LOCAL_RUNNER: runner.call_engine(method, *here)})
    except Exception as error:  # noqa: BLE001 - reported, as that of a remote runner
        return Answers(failures={LOCAL_RUNNER: _reason(error)})


def _reason(error: BaseException) -> str:
    cause = getattr(error, "cause", None)  # what a task of Ray's raised
    first = str(cause or error).splitlines() or [""]
    return f"{type(cause or error).__name__}: {first[0]}"
