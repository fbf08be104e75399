"""The learners of a run, whose state may lie in all of them."""

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

_LEFT_TO_THE_LEARNERS = "left to the learners"
_EACH = "dapo each learner"
# How long a death may go unnoticed; what is complete is returned at once.
_BEAT_SECONDS = 0.5
_DEATH_SECONDS = 3.0


_withheld: ContextVar[bool] = ContextVar("weights withheld", default=False)


@contextmanager
def engine_weights_withheld() -> Iterator[None]:
    """Within, no group hands out weights for engines.

    RLlib asks for them when it builds and restores an algorithm, whole and through the
    driver's memory. Ours go to the engines by `weight_sync`.
    """
    token = _withheld.set(True)
    try:
        yield
    finally:
        _withheld.reset(token)


class DAPOLearnerGroup(LearnerGroup):
    """RLlib's group, with states that are gathered from all learners.

    To gather the slices of a sharded model is a collective call. RLlib asks one learner for
    the state, which would wait for the others for ever; this group asks all of them and
    takes what the first returns. It also raises what a learner raised while it took or
    saved a state; RLlib passes over that.

    A learner that dies ends the run, and at once: RLlib would wait for the others, which wait
    for the dead one, and later go on without it and without its share of the batch.
    """

    _saving_in_place = False

    def update(self, **kwargs: Any) -> list[Any]:
        """RLlib's update; see there for the arguments.

        Raises:
            TrainingError: a learner is lost.
        """
        if self.is_local:
            return list(super().update(**kwargs))
        self._check_that_all_are_there()
        super().update(async_update=True, **kwargs)  # this only sends
        return [result.get() for result in self._wait_for_all(None)]

    def foreach_learner(self, func: Callable[[Any], Any], **kwargs: Any) -> Any:
        """RLlib's call to the learners; with arguments for `func` alone it is all or none.

        Raises:
            TrainingError: a learner is lost.
        """
        if self.is_local or kwargs:
            return super().foreach_learner(func, **kwargs)
        self._check_that_all_are_there()
        self._worker_manager.foreach_actor_async(func, tag=_EACH)
        return self._wait_for_all(_EACH)

    def get_state(
        self, components: Any = None, *, not_components: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The whole state, as one learner that is not sharded would have it.

        Raises:
            TrainingError: a learner is lost.
        """
        if not self._check_component(COMPONENT_LEARNER, components, not_components):
            return {}
        if kwargs.get("inference_only") and _withheld.get():
            return {COMPONENT_LEARNER: {}}
        if self._saving_in_place:
            return {COMPONENT_LEARNER: _LEFT_TO_THE_LEARNERS}
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
        """Give every learner the whole state."""
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
        """RLlib's checkpoint, written by the first learner from what all of them have.

        The state does not pass through this process, unless `state` gives it.
        """
        settings = {"filesystem": filesystem, "use_msgpack": use_msgpack}
        if state is not None and state.get(COMPONENT_LEARNER) == _LEFT_TO_THE_LEARNERS:
            state = None
        if self.is_local or state is not None:
            return str(super().save_to_path(path, state=state, **settings))
        # The group's own files; it has no state beside the learners'.
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

    @contextmanager
    def saving_in_place(self) -> Iterator[None]:
        """Within, `get_state()` returns a note that `save_to_path` understands.

        `Algorithm.save_to_path` fetches the state and hands it back for saving. Weights and
        two moments of a large model do not fit through there.
        """
        self._saving_in_place = self.is_remote
        try:
            yield
        finally:
            self._saving_in_place = False

    def _on_all_learners(self, function: Callable[[Any], Any]) -> list[Any]:
        """What each learner returned, by rank."""
        return list(self._get_results(self.foreach_learner(function)))

    def _check_that_all_are_there(self) -> None:
        if (there := self._worker_manager.num_healthy_actors()) < len(self):
            self._give_up(f"{len(self) - there} were lost before")

    def _wait_for_all(self, tag: str | None) -> RemoteCallResults:
        """The results of a call to all, by rank; gives up with the first that is lost."""
        by_rank: dict[int, Any] = {}
        while len(by_rank) < len(self):
            done, failures = self._fetch(tag, _BEAT_SECONDS)
            by_rank |= done
            if failures:
                # One whose partner died in a collective call may say so before Ray does.
                failures |= self._fetch(tag, _DEATH_SECONDS)[1]
                self._give_up_for(failures)
        results = RemoteCallResults()
        results.result_or_errors = [by_rank[rank] for rank in sorted(by_rank)]
        return results

    def _fetch(self, tag: str | None, seconds: float) -> tuple[dict[int, Any], dict[int, Any]]:
        """What has come back from a call after a while, by rank: results, and errors."""
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
        """Raise that a learner is lost, or else what one raised."""
        for rank, error in failures.items():
            if not isinstance(error, RayTaskError):
                self._give_up(f"learner {rank} was lost: {str(error).splitlines()[0]}")
        self._kill_all()
        raise next(iter(failures.values()))  # of the learner's own code; it says what to do

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
