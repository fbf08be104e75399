"""All runners as one: problems in, groups out as they finish.

The local runner and remote ones answer the same calls in the same slices. Problem i of a
job goes to runner i mod R, so the same seed and layout sample the same answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from rllib_dapo.errors import EngineError
from rllib_dapo.sampling_job import RunnerReply, SamplingJob
from rllib_dapo.types import Group, ProblemRef

_TAG = "collect"
# How long a runner works before it reports. Progress is shown at this pace.
_SLICE_SECONDS = 0.5


class RunnerPool:
    """The runners of an `EnvRunnerGroup`.

    Args:
        env_runner_group: RLlib's group; its local runner samples when it has no remote ones.
    """

    def __init__(self, env_runner_group: Any) -> None:
        self._group = env_runner_group
        self.weights_version = 0
        """Version of the weights that the engines were last given."""

    def sample(self, job: SamplingJob) -> Iterator[Group]:
        """Answer all problems of a job; yield each group as it finishes.

        Raises:
            EngineError: an engine failed, or no runner is left.
        """
        if self._group.num_remote_workers() == 0:
            yield from self._sample_locally(job)
        else:
            yield from self._sample_remotely(job)

    def sync_weights(self, learner_group: Any) -> None:
        """Bring the learner's weights into every engine, and wait until they serve.

        Raises:
            EngineError: an engine refused them.
        """
        state = learner_group.get_state(
            components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}", inference_only=True
        )[COMPONENT_LEARNER]
        state = {key: state[key] for key in (COMPONENT_RL_MODULE, WEIGHTS_SEQ_NO)}
        self.weights_version = int(state[WEIGHTS_SEQ_NO])
        if self._group.num_remote_workers() == 0:
            self._group.local_env_runner.set_state(state)
            return
        # One copy in shared memory for all runners of a node.
        state[COMPONENT_RL_MODULE] = ray.put(state[COMPONENT_RL_MODULE])
        asked = self._group.num_healthy_remote_workers()
        done = self._group.foreach_env_runner(
            "set_state", kwargs={"state": state}, local_env_runner=False, timeout_seconds=None
        )
        if asked and not done:
            raise EngineError(
                f"none of {asked} runners could take over weights of version "
                f"{state[WEIGHTS_SEQ_NO]}; the actors' logs say why"
            )

    def _sample_locally(self, job: SamplingJob) -> Iterator[Group]:
        runner = self._group.local_env_runner
        reply = runner.collect(job, seconds=_SLICE_SECONDS)
        while True:
            yield from reply.groups
            _raise_if_failed(reply, 0)
            if not reply.unfinished:
                return
            reply = runner.collect(None, seconds=_SLICE_SECONDS)

    def _sample_remotely(self, job: SamplingJob) -> Iterator[Group]:
        waiting: Sequence[ProblemRef] = job.refs
        attempt = 0
        while waiting:  # a second time only if a runner died
            runners = self._group.healthy_worker_ids()
            if not runners:
                raise EngineError(
                    f"no runner is left; {len(waiting)} problems are unanswered. Raise "
                    "`max_num_env_runner_restarts` or see the actors' logs for the cause"
                )
            open_refs = {
                worker: {ref.position: ref for ref in waiting[place :: len(runners)]}
                for place, worker in enumerate(runners)
            }
            for place, (worker, refs) in enumerate(open_refs.items()):
                seed = job.seed + 1_000_003 * attempt + place  # runners must not sample alike
                self._call(worker, replace(job, refs=tuple(refs.values()), seed=seed))
            yield from self._drain(open_refs)
            waiting = [ref for refs in open_refs.values() for ref in refs.values()]
            attempt += 1

    def _drain(self, open_refs: dict[int, dict[int, ProblemRef]]) -> Iterator[Group]:
        """Yield groups until every live runner is done; what is left over was lost."""
        busy = {worker for worker, refs in open_refs.items() if refs}
        while busy:
            replies = self._group.fetch_ready_async_reqs(tags=_TAG, timeout_seconds=0.02)
            for worker, reply in replies:
                for group in reply.groups:
                    if open_refs[worker].pop(group.ref.position, None) is not None:
                        yield group
                _raise_if_failed(reply, worker)
                if reply.unfinished:
                    self._call(worker, None)
                else:
                    busy.discard(worker)
            busy &= set(self._group.healthy_worker_ids())

    def _call(self, worker: int, job: SamplingJob | None) -> None:
        """Ask one runner for a slice of work."""
        sent = self._group.foreach_env_runner_async(
            "collect",
            tag=_TAG,
            kwargs={"job": job, "seconds": _SLICE_SECONDS},
            remote_worker_ids=[worker],
        )
        if not sent and worker in self._group.healthy_worker_ids():
            raise EngineError(f"runner {worker} already has a request under way")


def _raise_if_failed(reply: RunnerReply, worker: int) -> None:
    if reply.error is not None:
        raise EngineError(f"runner {worker} failed: {reply.error}")
