"""Transfers from sharded learners to real engines, by vLLM's protocols without a GPU.

NCCL's broadcasts go over gloo, CUDA IPC's buffers are in shared memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import ray
import torch
from engine_actor import PROMPT, EngineActor
from gloo_transport import set_buffer, use_gloo
from ipc_transport import remove_buffers, use_shared_memory
from learner_groups import learner_group
from ray import cloudpickle
from reference_model import answer_logprobs, fresh_embedded_model
from weight_sync_parts import RunnerGroup, weight_sync

from rllib_dapo.algorithm.weight_sync.sync import WeightSync
from rllib_dapo.algorithm.weight_sync.transfer import TransferTransport
from rllib_dapo.errors import EngineError
from rllib_dapo.model.facts import model_path
from rllib_dapo.rollout.runner_calls import RemoteCalls

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
    group.foreach_learner(use_shared_memory)
    yield group
    group.foreach_learner(remove_buffers)
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


def sync_over(
    learners: Any,
    engines: dict[int, Any],
    *,
    way: Any = "nccl",
    timeout_s: float = 60.0,
    call_timeout_s: float = 60.0,
    interval: int = 1,
) -> WeightSync:
    transport = TransferTransport(way, learners, timeout_s=timeout_s)
    calls = RemoteCalls(RunnerGroup(engines), call_timeout_s)
    return weight_sync(transport, calls, interval=interval)


def serves(engine: Any, model: Any) -> int:
    """Assert that an engine samples from that model; the version it says it did so with."""
    ids, logprobs, ((_, version),) = ray.get(engine.sample.remote())
    np.testing.assert_allclose(logprobs, answer_logprobs(model, PROMPT, ids), atol=1e-4)
    return version


@pytest.mark.parametrize("way", ["nccl", "cuda_ipc"])
@pytest.mark.parametrize("piece", [16 * 2**20, 200_000])
def test_all_engines_get_a_sharded_models_weights_in_one_piece_or_many(
    engines, learners, way, piece
):
    learners.foreach_learner(partial(set_buffer, size=piece))
    sync = sync_over(learners, engines, way=way)
    for seed in (1, 2):
        learners.foreach_learner(partial(step_of, seed=seed))
        report = sync.send([1, 2])
        assert sorted(report.served) == [1, 2]
        assert not report.failed
        assert report.gap < 1e-5
        model = model_of(learners)
        versions = {serves(engine, model) for engine in engines.values()}
        assert versions == {report.version}


def refuses(engine: Any) -> None:
    with pytest.raises(EngineError, match="weights are a mixture"):
        ray.get(engine.sample.remote())


def test_one_changed_element_is_found_named_and_never_served(engines, learners):
    sync = sync_over(learners, engines)
    learners.foreach_learner(partial(step_of, seed=3))
    ray.get(engines[2].tamper.remote("one element"))
    report = sync.send([1, 2])
    assert report.served == (1,)
    assert "arrived changed: the checksum of model.embed_tokens" in report.failed[2]
    refuses(engines[2])
    serves(engines[1], model_of(learners))
    learners.foreach_learner(partial(step_of, seed=4))
    assert sorted(sync.send([1, 2]).served) == [1, 2]  # and is cured by the next
    serves(engines[2], model_of(learners))


def test_without_a_check_due_nothing_is_compared(engines, learners):
    """What the check costs is not paid by every sync, and what it finds is not found."""
    sync = sync_over(learners, engines, interval=0)
    ray.get(engines[2].tamper.remote("one element"))
    report = sync.send([1, 2])
    assert sorted(report.served) == [1, 2]
    assert report.gap is None


@pytest.mark.parametrize("moment", ["weights.start", "weights.receive"])
def test_a_runner_that_is_lost_does_not_keep_the_others_from_their_weights(
    engines, learners, moment
):
    """Before a broadcast or in it: all others are served through the object store.

    The weights stay there until the next sync, so the runner gets them when it is back.
    """
    sync = sync_over(learners, engines)
    learners.foreach_learner(partial(step_of, seed=5))
    ray.get(engines[2].plan.remote(moment, "die"))
    report = sync.send([1, 2])
    assert report.served == (1,)
    assert list(report.failed) == [2]
    serves(engines[1], model_of(learners))
    answer_again(engines[2])
    sync._calls._group.lost.clear()  # RLlib's own would notice that it answers again
    assert sync.send_again([2]) == (2,)
    assert serves(engines[2], model_of(learners)) == report.version
    learners.foreach_learner(partial(step_of, seed=8))
    report = sync.send([1, 2])
    assert sorted(report.served) == [1, 2]
    assert {serves(engine, model_of(learners)) for engine in engines.values()} == {report.version}
    assert sync.send_again([1, 2]) is None  # a broadcast keeps nothing


def answer_again(engine: Any) -> None:
    """Wait for an actor that is being started again."""
    while True:
        try:
            ray.get(engine.attribute.remote("weights_version"))
            return
        except ray.exceptions.RayActorError:
            time.sleep(0.2)


def test_a_broadcast_that_hangs_is_given_up_and_its_half_is_never_served(
    engines, learners, tmp_path
):
    """If the other runner answers again soon, it gets its weights from the object store."""
    sync = sync_over(learners, engines, timeout_s=4.0, call_timeout_s=8.0)
    learners.foreach_learner(partial(step_of, seed=6))
    hangs = tmp_path / "hangs"
    hangs.touch()
    ray.get(engines[2].plan.remote("weights.receive", str(hangs)))
    report = sync.send([1, 2])
    assert 2 not in report.served
    assert "no answer within" in report.failed[2]
    for runner in report.served:
        serves(engines[runner], model_of(learners))
    hangs.unlink()
    for runner in report.failed:
        refuses(engines[runner])  # when it answers again
    report = sync_over(learners, engines).send([1, 2])
    assert sorted(report.served) == [1, 2]
    serves(engines[2], model_of(learners))


def test_over_ipc_a_runner_that_is_lost_in_the_middle_does_not_disturb_the_others(
    engines, learners
):
    """Nobody waits for it: the others are served, and it gets the next weights."""
    sync = sync_over(learners, engines, way="cuda_ipc")
    learners.foreach_learner(partial(step_of, seed=7))
    ray.get(engines[2].plan.remote("weights.receive", "raise"))
    report = sync.send([1, 2])
    assert report.served == (1,)
    assert "as planned" in report.failed[2]
    refuses(engines[2])
    serves(engines[1], model_of(learners))
    assert sorted(sync.send([1, 2]).served) == [1, 2]
