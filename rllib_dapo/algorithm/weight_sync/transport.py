"""The ways in which weights can travel, and which of them fits a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rllib_dapo.algorithm.weight_sync.learners import Probe
from rllib_dapo.errors import refuse
from rllib_dapo.model.device import Place
from rllib_dapo.rollout.runner_calls import CallResults, RunnerCalls
from rllib_dapo.settings.choices import WeightSyncChoice

TransportName = Literal["in_process", "object_store", "cuda_ipc", "nccl"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """The outcome of sending weights once.

    Attributes:
        version: the version of the weights, which is the number of the learner's updates.
        results: has a value for each runner that took the weights, and says why others did not.
        probe: what the learner makes of a fixed text; None where this sync is not checked.
    """

    version: int
    results: CallResults
    probe: Probe | None


class Transport(Protocol):
    """One way for weights to travel from the learners to the engines."""

    @property
    def name(self) -> TransportName:
        """Which way it is."""
        ...

    def send(self, calls: RunnerCalls, runners: Sequence[int], *, with_checks: bool) -> Delivery:
        """Bring the learner's weights into the engines, and wait for all of them.

        Args:
            calls: reaches the runners.
            runners: their numbers.
            with_checks: compare checksums, and return the learner's probe.

        Raises:
            EngineError: a learner could not send.
            TrainingError: a learner is lost.
        """
        ...

    def send_again(self, calls: RunnerCalls, runners: Sequence[int]) -> Delivery | None:
        """Bring the weights of the last `send` to runners that have lost them.

        These are the weights that the other runners serve, even if the learner has newer ones.

        Returns:
            None if these weights were not kept: the runners wait for the next `send`.
        """
        ...


def choose_transport(
    choice: WeightSyncChoice,
    learners: Sequence[Place],
    engines: Iterable[Sequence[Place]],
    *,
    local_engine: bool = False,
) -> TransportName:
    """The transport that fits where everything computes.

    | what is where | auto |
    |---|---|
    | the one learner in the process of the one engine | `in_process` |
    | the engine in the driver's process, the learner not | `object_store` |
    | a learner or an engine without a GPU | `object_store` |
    | each engine on GPUs that learners compute on too | `cuda_ipc` |
    | no engine on a GPU that a learner computes on | `nccl` |
    | some engines on such GPUs, some not | `object_store` |

    Args:
        choice: the setting `weight_sync`.
        learners: where each learner computes.
        engines: where the workers of each engine compute.
        local_engine: True if the engine is in the driver's process, which learners cannot call.

    Raises:
        SettingError: what the user chose cannot work there.
    """
    engines = [list(workers) for workers in engines]
    workers = [worker for engine in engines for worker in engine]
    learner_gpus = {learner.gpu for learner in learners}
    all_on_gpus = None not in learner_gpus | {worker.gpu for worker in workers}
    shared = [worker.gpu in learner_gpus for worker in workers]
    if choice == "object_store":
        return "object_store"
    if choice != "auto":
        _check_choice(choice, all_on_gpus, shared, local_engine)
        return choice
    if len(learners) == 1 and engines == [list(learners)]:
        return "in_process"
    if local_engine or not workers or not all_on_gpus:
        return "object_store"
    if all(shared):
        return "cuda_ipc"
    return "object_store" if any(shared) else "nccl"


def _check_choice(
    choice: Literal["cuda_ipc", "nccl"], all_on_gpus: bool, shared: list[bool], local_engine: bool
) -> None:
    """Refuse a transport between GPUs where it cannot work."""
    remedy = "use 'auto', or 'object_store', which works everywhere"
    if local_engine:
        refuse("weight_sync", choice, "needs engines in runners of their own: `num_env_runners` 1")
    if not all_on_gpus:
        refuse("weight_sync", choice, f"a learner or an engine computes on a CPU; {remedy}")
    if choice == "cuda_ipc" and not all(shared):
        refuse("weight_sync", choice, f"an engine is on a GPU without a learner; {remedy}")
    if choice == "nccl" and any(shared):
        refuse(
            "weight_sync",
            choice,
            f"an engine is on a learner's GPU, where NCCL allows one process only; {remedy}",
        )
