"""Nothing grows over hundreds of iterations: not the driver, a runner, or the object store."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import psutil
import pytest
import ray
from faulty_runners import faulty_runner
from ray import cloudpickle
from scripted_engine import NO_MODEL

from rllib_dapo.algorithm.dapo import DAPOConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # runners do not find it

MIB = 2**20
# An iteration handles about 50 kB of groups, and 80 kB of weights. Of 150 iterations, keeping
# one of the two would show as 7 MiB or more; RSS itself wanders by a page cache or two.
BOUND = 5 * MIB

SETTINGS = {
    **NO_MODEL,
    "group_size": 8,
    "groups_per_batch": 8,
    "minibatch_size": 64,
    "progress": "off",
    "max_staleness": 1,
}


def resident(_: Any = None) -> int:
    """Bytes of this process, after the garbage is collected."""
    gc.collect()
    return psutil.Process(os.getpid()).memory_info().rss


def in_store() -> float:
    """Bytes of the object store that are taken."""
    total = ray.cluster_resources()["object_store_memory"]
    return total - ray.available_resources().get("object_store_memory", 0.0)


def in_hand(algorithm: Any) -> int:
    """Problems and groups that pool and rollouts keep."""
    state = algorithm._rollouts.get_state()
    return len(state["buffer"]) + len(state["again"]) + algorithm._pool.in_flight


@pytest.mark.parametrize("runners", [0, 1])
def test_two_hundred_iterations_take_no_more_memory_than_fifty(
    ray_session, one_thread, tiny_model, tmp_path, runners
):
    config = (
        DAPOConfig()
        .environment("rllib_dapo/Arithmetic-v0")
        .env_runners(
            env_runner_cls=faulty_runner(tmp_path, step_s=0.0, forgetful=True),
            num_env_runners=runners,
        )
        .debugging(seed=1)
        .update_from_dict({"model": str(tiny_model), **SETTINGS})
    )
    algorithm = config.build_algo()
    try:
        seen = []
        for iteration in range(1, 201):
            algorithm.train()
            assert in_hand(algorithm) < 60
            if iteration in (50, 200):
                remote = algorithm.env_runner_group.foreach_env_runner(
                    resident, local_env_runner=False
                )
                seen.append([resident(), *remote, in_store()])
        growth = [after - before for before, after in zip(*seen, strict=True)]
        assert len(growth) == 2 + runners
        assert max(growth) < BOUND, [f"{bytes_ / MIB:.1f} MiB" for bytes_ in growth]
    finally:
        algorithm.stop()


def test_syncs_and_samples_of_a_real_engine_take_no_memory(runner, initial_weights):
    """Sixty times new weights and a few answers."""
    from runner_groups import JOB, collect_all

    def use(times: range) -> int:
        for version in times:
            runner.call_engine("load_weights", initial_weights, version)
            assert len(collect_all(runner, JOB)) == len(JOB.refs)
        return resident()

    before = use(range(1, 21))
    assert use(range(21, 81)) - before < 10 * MIB
