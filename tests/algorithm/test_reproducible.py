"""The same seed gives the same run, with the engine in the main process or in two others."""

from __future__ import annotations

import sys
from typing import Any

import learners
import numpy as np
import pytest
import ray
from learners import parameters
from ray import cloudpickle

for _module in (learners, sys.modules[__name__]):  # Ray's workers do not find them
    cloudpickle.register_pickle_by_value(_module)

# Three real engines start.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SETTINGS = {
    "group_size": 8,
    "groups_per_batch": 4,
    "minibatch_size": 16,
    "max_completion_length": 48,
    "warmup_iterations": 0,
    "engine_cpu_threads": 1,
    "learner_cpu_threads": 1,
    "kv_cache_gib": 0.25,
    "progress": "off",
}


@ray.remote(num_cpus=1, max_retries=0)
def play(num_env_runners: int) -> dict[str, Any]:
    """Two iterations in a process of their own: a process can start one vLLM engine only."""
    from rllib_dapo.algorithm.dapo import DAPOConfig

    config = DAPOConfig().environment("rllib_dapo/Arithmetic-v0").debugging(seed=7)
    config.env_runners(num_env_runners=num_env_runners)
    algorithm = config.update_from_dict(SETTINGS).build_algo()
    try:
        batches, weights = [], []
        run_learners = algorithm._run_learners

        def recorded(groups: Any) -> Any:
            batches.append([
                (g.ref.position, [c.token_ids.tolist() for c in g.completions])
                for g in groups
            ])  # fmt: skip
            return run_learners(groups)

        algorithm._run_learners = recorded
        for _ in range(2):
            algorithm.train()
            weights.append(parameters(algorithm.learner_group._learner).numpy().copy())
        return {"batches": batches, "weights": weights}
    finally:
        algorithm.stop()


@pytest.fixture(scope="module")
def runs(ray_session) -> list[dict[str, Any]]:
    return [ray.get(play.remote(runners)) for runners in (0, 2)]  # one after the other


def test_problems_and_answers_are_the_same_with_one_engine_and_with_two(runs):
    local, remote = (run["batches"] for run in runs)
    assert len(local) == 2
    assert local == remote
    assert local[0] != local[1]


def test_learned_weights_are_the_same_with_one_engine_and_with_two(runs):
    local, remote = (run["weights"] for run in runs)
    assert not np.array_equal(local[0], local[1])
    for mine, other in zip(local, remote, strict=True):
        assert np.array_equal(mine, other), np.abs(mine - other).max()
