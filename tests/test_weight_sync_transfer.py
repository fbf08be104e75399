"""Broadcasts from sharded learners to real engines: vLLM's NCCL protocol, over gloo."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import ray
import torch
from engine_actor import PROMPT, EngineActor
from gloo_transport import set_buffer, use_gloo
from ray import cloudpickle
from learner_groups import learner_group
from reference_model import answer_logprobs, fresh_embedded_model
from weight_sync_parts import RunnerGroup

from rllib_dapo.errors import EngineError
from rllib_dapo.model import model_path
from rllib_dapo.weight_sync.checks import SyncChecks
from rllib_dapo.weight_sync.runners import RunnerEngines
from rllib_dapo.weight_sync.transfer import TransferSync

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # `step_of`, for learners

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def engines(ray_session: None) -> Iterator[dict[int, Any]]:
    """Two runners with an engine each."""
    actors = {number: EngineActor.remote(model_path("embedded")) for number in (1, 2)}
    ray.get([actor.attribute.remote("weights_version") for actor in actors.values()])
    yield actors
    for actor in actors.values():
        ray.kill(actor)


@pytest.fixture(scope="module")
def learners(ray_session: None) -> Iterator[Any]:
    """Two learners with half of the model each."""
    group = learner_group("embedded", 2, shard_model=True)
    group.foreach_learner(use_gloo)
    yield group
    group.shutdown()


def step_of(learner: Any, *, seed: int) -> None:
    """Move the weights, as an update would; the same on all learners."""
    from torch.distributed.tensor import DTensor

    with torch.no_grad():
        for parameter in learner._params.values():
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            local.add_(1e-2 * torch.sin(seed + torch.arange(local.numel())).view(local.shape))
    learner._weights_seq_no += 1


def model_of(learners: Any) -> Any:
    """The learners' model, whole, in transformers."""
    from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID

    state = learners.get_state(
        components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}", inference_only=True
    )[COMPONENT_LEARNER][COMPONENT_RL_MODULE][DEFAULT_MODULE_ID]
    model = fresh_embedded_model()
    plain = {name.removeprefix("causal_lm."): torch.tensor(w) for name, w in state.items()}
    model.load_state_dict(plain)
    return model


def sync_over(learners: Any, *, timeout_s: float = 60.0, interval: int = 1) -> TransferSync:
    return TransferSync("nccl", learners, SyncChecks(interval), timeout_s=timeout_s)


def runners_of(engines: dict[int, Any], timeout_s: float = 60.0) -> RunnerEngines:
    return RunnerEngines(RunnerGroup(engines), timeout_s)


def serves(engine: Any, model: Any) -> int:
    """Assert that an engine samples from that model; the version it says it did so with."""
    ids, logprobs, ((_, version),) = ray.get(engine.sample.remote())
    np.testing.assert_allclose(logprobs, answer_logprobs(model, PROMPT, ids), atol=1e-4)
    return version


@pytest.mark.parametrize("piece", [256 * 2**20, 60_000])
def test_all_engines_get_a_sharded_models_weights_in_one_piece_or_many(engines, learners, piece):
    learners.foreach_learner(partial(set_buffer, size=piece))
    sync = sync_over(learners)
    for seed in (1, 2):
        learners.foreach_learner(partial(step_of, seed=seed))
        report = sync.send(runners_of(engines))
        assert sorted(report.served) == [1, 2]
        assert not report.failed
        assert report.gap < 1e-5
        model = model_of(learners)
        versions = {serves(engine, model) for engine in engines.values()}
        assert versions == {report.version}
