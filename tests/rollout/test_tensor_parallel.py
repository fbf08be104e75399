"""One engine over two worker processes, inside a Ray actor, as a runner has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from engine_actor import PROMPT, EngineActor
from reference_model import answer_logprobs, embedded_model
from weight_sync_parts import RunnerGroup, language_model, local_learners, selected_sync, step

from rllib_dapo.algorithm.weight_sync.learners import probe_text
from rllib_dapo.model.facts import model_path
from rllib_dapo.rollout.runner_calls import RemoteCalls

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def engine(ray_session: None) -> Iterator[Any]:
    actor = EngineActor.remote(model_path("embedded"), tensor_parallel_size=2)
    yield actor
    ray.get(actor.call_engine.remote("shutdown"))
    ray.kill(actor)


def segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("psm_*")}  # noqa: S108


def test_the_workers_of_an_engine_are_processes_of_their_own(engine):
    places = ray.get(engine.call_engine.remote("places"))
    assert len({place.process for place in places}) == 2


def test_an_engine_of_two_workers_samples_from_the_learners_model(engine):
    """Before and after weight updates, which reach the workers through shared memory."""
    text = probe_text(99, 100)
    expected = answer_logprobs(embedded_model(), text[:1], text[1:])
    before = ray.get(engine.call_engine.remote("prompt_logprobs", text))
    np.testing.assert_allclose(before, expected, atol=1e-4)

    group = local_learners()
    sync = selected_sync(group, RemoteCalls(RunnerGroup({1: engine}), timeout_s=120))
    assert sync.transport.name == "object_store"
    own = segments()
    for number in range(2):
        step(group, seed=number)
        report = sync.send([1])
        assert (report.served, report.failed) == ((1,), {})
        assert report.gap < 1e-5
        ids, logprobs, ((_, version),) = ray.get(engine.sample.remote(seed=number))
        assert version == report.version
        model = language_model(group)
        packed = answer_logprobs_packed(model, [*PROMPT, *ids])
        np.testing.assert_allclose(logprobs, packed[len(PROMPT) - 1 :], atol=1e-4)
    assert segments() <= own


def answer_logprobs_packed(causal_lm: Any, ids: list[int]) -> Any:
    """By a plain copy of the learner's model, whose own attention wants packed rows."""
    model = type(embedded_model())(embedded_model().config).eval()
    model.load_state_dict(causal_lm.state_dict())
    return answer_logprobs(model, ids[:1], ids[1:])


def test_a_changed_tensor_is_found_in_the_workers_and_the_segment_is_freed(engine):
    group = local_learners()
    calls = RemoteCalls(RunnerGroup({1: engine}), timeout_s=120)
    own = segments()
    state = {name: t.numpy() for name, t in embedded_model().state_dict().items()}
    from rllib_dapo.rollout.engine.checksums import checksum

    sums = {name: checksum(t) for name, t in embedded_model().state_dict().items()}
    sums["model.norm.weight"] += 1
    results = calls.call_engines([1], "load_weights", state, 7, sums)
    assert "the checksum of model.norm.weight" in results.failures[1].reason
    assert segments() <= own
    assert not selected_sync(group, calls).send([1]).failed  # and a whole set cures it
