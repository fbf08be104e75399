"""Which way the weights go, by where learners and engines compute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from rllib_dapo.errors import refuse
from rllib_dapo.model.device import Place
from rllib_dapo.settings.choices import WeightSyncChoice

Transport = Literal["in_process", "object_store", "cuda_ipc", "nccl"]


def choose_transport(
    choice: WeightSyncChoice,
    learners: Sequence[Place],
    engines: Iterable[Sequence[Place]],
    *,
    local_engine: bool = False,
) -> Transport:
    """The transport for these places.

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
        engines: of each engine, where its workers compute.
        local_engine: the engine is in the driver's process, which learners cannot call.

    Raises:
        SettingError: what was chosen by hand cannot work there.
    """
    engines = [tuple(workers) for workers in engines]
    workers = [place for engine in engines for place in engine]
    learner_gpus = {place.gpu for place in learners}
    everything_on_gpus = None not in learner_gpus | {place.gpu for place in workers}
    shared = [place.gpu in learner_gpus for place in workers]
    if choice == "object_store":
        return "object_store"
    if choice == "auto":
        if len(learners) == 1 and [list(learners)] == [list(engine) for engine in engines]:
            return "in_process"
        if local_engine or not workers or not everything_on_gpus:
            return "object_store"
        return "cuda_ipc" if all(shared) else "object_store" if any(shared) else "nccl"
    if local_engine:
        refuse("weight_sync", choice, "needs engines in runners of their own: `num_env_runners` 1")
    remedy = "use 'auto', or 'object_store', which works everywhere"
    if not everything_on_gpus:
        refuse("weight_sync", choice, f"a learner or an engine computes on a CPU; {remedy}")
    if choice == "cuda_ipc" and not all(shared):
        refuse("weight_sync", choice, f"an engine is on a GPU without a learner; {remedy}")
    if choice == "nccl" and any(shared):
        refuse(
            "weight_sync",
            choice,
            f"an engine is on a learner's GPU, where NCCL allows one process only; {remedy}",
        )
    return choice
