"""The group of a run's learners. If one of them is lost, the group ends with an error."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pyarrow.fs  # type: ignore[import-untyped]
import ray
from ray.exceptions import RayTaskError
from ray.rllib.core import COMPONENT_LEARNER
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils.actor_manager import RemoteCallResults
from ray.tune.utils.file_transfer import sync_dir_between_nodes

from rllib_dapo.errors import TrainingError
from rllib_dapo.model.sharding import is_first

# The tag of `foreach_learner`'s calls, which tells their results from those of `update`.
_FOREACH = "foreach_learner"
# A learner's death is noticed after this time at most; complete results are returned at once.
_POLL_SECONDS = 0.5
_DEATH_SECONDS = 3.0

_WITHHELD: ContextVar[bool] = ContextVar("engine weights are withheld", default=False)


@contextmanager
def engine_weights_withheld() -> Iterator[None]:
    """Let learner groups answer requests for engine weights without weights, in this context.

    When RLlib builds or restores an algorithm, it asks for whole weights, through the driver's
    memory, to send them to the runners. Ours reach the engines by `weight_sync` instead.
    """
    token = _WITHHELD.set(True)
    try:
        yield
    finally:
        _WITHHELD.reset(token)


class DAPOLearnerGroup(LearnerGroup):
    """RLlib's group, with calls that reach all learners or raise.

    Learners compute together: gathering the slices of a sharded model, for instance, is a
    collective call. RLlib asks one learner for the state, which would wait for the others for
    ever; this group asks all of them and takes what rank 0 returns. It also raises what a
    learner raised while it took or saved a state, which RLlib ignores.

    A learner that dies ends the run at once. RLlib would wait for the others, which wait for
    the dead one, and later continue without it and without its share of the batch.
    """

    def update(self, **kwargs: Any) -> list[Any]:
        """Update all learners; the arguments are those of RLlib's method.

        Raises:
            TrainingError: a learner is lost.
        """
        if self.is_local:
            return list(super().update(**kwargs))
        self._check_that_none_is_lost()
        super().update(async_update=True, **kwargs)  # This only sends the batches.
        return [result.get() for result in self._wait_for_all(None)]

    def foreach_learner(self, func: Callable[..., Any], **kwargs: Any) -> Any:
        """Call a function with every learner, in its process, all at the same time.

        Args:
            func: is called with the learner and `kwargs`.
            **kwargs: RLlib's options that choose some of the learners, or a time after which
                they are no longer waited for, are refused: learners that compute together
                would wait for the others.

        Returns:
            RLlib's results, by rank.

        Raises:
            TrainingError: a learner is lost.
            TypeError: an option of RLlib is given.
        """
        options = {"healthy_only", "remote_actor_ids", "timeout_seconds", "return_obj_refs",
                   "mark_healthy"}  # fmt: skip
        if given := sorted(options & kwargs.keys()):
            raise TypeError(f"foreach_learner calls all learners and waits: leave out {given}")
        if self.is_local:
            return super().foreach_learner(func, **kwargs)
        self._check_that_none_is_lost()
        self._worker_manager.foreach_actor_async(partial(func, **kwargs), tag=_FOREACH)
        return self._wait_for_all(_FOREACH)

    # -- State --------------------------------------------------------------------------------

    def get_state(
        self, components: Any = None, *, not_components: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the whole state, which is the same for sharded and unsharded learners.

        Raises:
            TrainingError: a learner is lost.
        """
        if not self._check_component(COMPONENT_LEARNER, components, not_components):
            return {}
        if kwargs.get("inference_only") and _WITHHELD.get():
            return {COMPONENT_LEARNER: {}}
        if not (self.is_remote and self.config.shard_model):
            return dict(super().get_state(components, not_components=not_components, **kwargs))
        wanted = self._get_subcomponents(COMPONENT_LEARNER, components)
        unwanted = self._get_subcomponents(COMPONENT_LEARNER, not_components)

        def gather(learner: Any) -> Any:
            state = learner.get_state(wanted, not_components=unwanted, **kwargs)
            return state if is_first() else None

        (state,) = (s for s in self._on_all_learners(gather) if s is not None)
        return {COMPONENT_LEARNER: state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Give every learner the whole state.

        Raises:
            TrainingError: a learner is lost, or the state belongs to another model.
        """
        if self.is_local or COMPONENT_LEARNER not in state:
            super().set_state(state)
            return
        reference = ray.put(state[COMPONENT_LEARNER])  # one copy per node
        self._on_all_learners(lambda learner: learner.set_state(ray.get(reference)))

    def save_to_path(
        self,
        path: str | Path | None = None,
        *,
        state: dict[str, Any] | None = None,
        filesystem: Any = None,
        use_msgpack: bool = False,
    ) -> str:
        """Write RLlib's checkpoint; the first learner writes the state of all learners.

        The state does not pass through this process, unless `state` is given.
        """
        settings = {"filesystem": filesystem, "use_msgpack": use_msgpack}
        if self.is_local or state is not None:
            return str(super().save_to_path(path, state=state, **settings))
        # These files are the group's own; all state is in the learners' files.
        saved = str(super().save_to_path(path, state={}, **settings))
        if filesystem is None and path is not None:
            filesystem, _ = pyarrow.fs.FileSystem.from_uri(str(path))
        self._save_learner(Path(saved) / COMPONENT_LEARNER, filesystem, use_msgpack)
        return saved

    def _save_learner(self, path: Path, filesystem: Any, use_msgpack: bool) -> None:
        driver = ray.util.get_node_ip_address()
        sharded = self.config.shard_model

        def save(learner: Any) -> tuple[str, str] | None:
            state = learner.get_state() if sharded or is_first() else None
            if not is_first():
                return None
            settings = {"state": state, "use_msgpack": use_msgpack}
            if (here := ray.util.get_node_ip_address()) == driver:
                learner.save_to_path(path, filesystem=filesystem, **settings)
                return None
            folder = tempfile.mkdtemp()
            learner.save_to_path(folder, **settings)
            return here, folder

        for node, folder in filter(None, self._on_all_learners(save)):
            sync_dir_between_nodes(node, folder, driver, str(path))
            self._on_all_learners(partial(_remove, folder=folder))

    # -- Calls to all learners ----------------------------------------------------------------

    def _on_all_learners(self, function: Callable[[Any], Any]) -> list[Any]:
        """Return what each learner returned, by rank."""
        return list(self._get_results(self.foreach_learner(function)))

    def _check_that_none_is_lost(self) -> None:
        if (healthy := self._worker_manager.num_healthy_actors()) < len(self):
            self._give_up(f"{len(self) - healthy} were lost before")

    def _wait_for_all(self, tag: str | None) -> RemoteCallResults:
        """Return the results of a call to all learners, by rank; raise as soon as one is lost."""
        by_rank: dict[int, Any] = {}
        while len(by_rank) < len(self):
            done, failures = self._fetch(tag, _POLL_SECONDS)
            by_rank |= done
            if failures:
                # A learner whose partner died in a collective call may report its error before
                # Ray reports the death.
                failures |= self._fetch(tag, _DEATH_SECONDS)[1]
                self._give_up_for(failures)
        results = RemoteCallResults()
        results.result_or_errors = [by_rank[rank] for rank in sorted(by_rank)]
        return results

    def _fetch(self, tag: str | None, seconds: float) -> tuple[dict[int, Any], dict[int, Any]]:
        """Return (results, errors) that came back from a call within a time, by rank."""
        done, failures = {}, {}
        for result in self._worker_manager.fetch_ready_async_reqs(
            tags=[tag], timeout_seconds=seconds
        ):
            if result.ok:
                done[result.actor_id] = result
            else:
                failures[result.actor_id] = result.get()
        return done, failures

    def _give_up_for(self, failures: dict[int, Exception]) -> NoReturn:
        """Raise a TrainingError if a learner is lost, or else the error of a learner's own code."""
        for rank, error in failures.items():
            if not isinstance(error, RayTaskError):
                self._give_up(f"learner {rank} was lost: {str(error).splitlines()[0]}")
        self._kill_all()
        raise next(iter(failures.values()))  # The message of this error says what to do.

    def _kill_all(self) -> None:
        """End all learners, which may be waiting for one another in a collective call."""
        for actor in self._worker_manager.actors().values():
            ray.kill(actor)

    def _give_up(self, reason: str) -> NoReturn:
        self._kill_all()
        raise TrainingError(
            f"of num_learners={len(self)} learners, {reason}. Restore the last checkpoint; Tune "
            "does so by itself with `max_failures` above 0"
        )


def _remove(_: Any, folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
