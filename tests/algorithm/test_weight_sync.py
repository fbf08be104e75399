"""Which way weights go, what is sent, and what each check finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference_model import answer_logprobs, embedded_model
from weight_sync_parts import (
    DirectCalls,
    EngineInside,
    PlainEngine,
    local_learners,
    selected_sync,
    step,
    weight_sync,
)

from rllib_dapo.algorithm.weight_sync.checks import SyncChecks
from rllib_dapo.algorithm.weight_sync.learners import learner_logprobs, probe_text
from rllib_dapo.algorithm.weight_sync.object_store import ObjectStoreTransport
from rllib_dapo.algorithm.weight_sync.transport import choose_transport
from rllib_dapo.errors import EngineError, SettingError
from rllib_dapo.model.device import Place, place_of
from rllib_dapo.rollout.runner_calls import LocalCalls
from rllib_dapo.rollout.sampling_job import LOCAL_RUNNER

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("one_thread")]


# -- Which way ----------------------------------------------------------------------------

CPU, OTHER_CPU, FAR_CPU = Place("a", 1), Place("a", 2), Place("b", 3)
GPU_0, GPU_0_TOO = Place("a", 1, "GPU-0"), Place("a", 2, "GPU-0")
GPU_1, FAR_GPU = Place("a", 3, "GPU-1"), Place("b", 4, "GPU-9")


@pytest.mark.parametrize(
    ("learners", "engines", "expected"),
    [
        ([CPU], [[CPU]], "in_process"),
        ([GPU_0], [[GPU_0]], "in_process"),
        ([CPU], [[OTHER_CPU]], "object_store"),
        ([CPU], [[FAR_CPU], [OTHER_CPU]], "object_store"),
        ([CPU, OTHER_CPU], [[CPU]], "object_store"),
        ([CPU], [[CPU, OTHER_CPU]], "object_store"),
        ([GPU_0], [[CPU]], "object_store"),
        ([CPU], [[GPU_0]], "object_store"),
        ([GPU_0], [[GPU_1], [CPU]], "object_store"),
        ([GPU_0], [[GPU_0_TOO]], "cuda_ipc"),
        ([GPU_0, GPU_1], [[GPU_0_TOO], [GPU_1]], "cuda_ipc"),
        ([GPU_0], [[GPU_1]], "nccl"),
        ([GPU_0], [[FAR_GPU], [GPU_1]], "nccl"),
        ([GPU_0], [[GPU_0_TOO], [GPU_1]], "object_store"),
        ([GPU_0], [[GPU_0_TOO, GPU_1]], "object_store"),
        ([GPU_0], [], "object_store"),
    ],
)
def test_the_way_follows_from_where_learners_and_engines_compute(learners, engines, expected):
    assert choose_transport("auto", learners, engines) == expected
    assert choose_transport("object_store", learners, engines) == "object_store"


@pytest.mark.parametrize(
    ("choice", "learners", "engines", "local", "why"),
    [
        ("nccl", [CPU], [[OTHER_CPU]], False, "computes on a CPU"),
        ("cuda_ipc", [GPU_0], [[CPU]], False, "computes on a CPU"),
        ("cuda_ipc", [GPU_0], [[GPU_1]], False, "a GPU without a learner"),
        ("nccl", [GPU_0], [[GPU_0_TOO]], False, "a learner's GPU"),
        ("nccl", [GPU_0], [[GPU_1]], True, "num_env_runners"),
    ],
)
def test_a_way_that_cannot_work_there_is_refused(choice, learners, engines, local, why):
    with pytest.raises(SettingError, match=f"weight_sync='{choice}'.*{why}"):
        choose_transport(choice, learners, engines, local_engine=local)


@pytest.mark.parametrize("choice", ["cuda_ipc", "nccl"])
def test_a_way_chosen_by_hand_is_taken_where_it_can_work(choice):
    engines = [[GPU_0_TOO]] if choice == "cuda_ipc" else [[GPU_1]]
    assert choose_transport(choice, [GPU_0], engines) == choice


def test_an_engine_in_the_drivers_process_is_reached_through_the_object_store():
    assert choose_transport("auto", [GPU_0], [[GPU_1]], local_engine=True) == "object_store"


# -- When a sync is checked ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "expected"), [(0, []), (1, [1, 2, 3, 4, 5, 6, 7]), (3, [1, 2, 4, 7])]
)
def test_the_first_two_syncs_are_checked_and_then_one_in_each_interval(interval, expected):
    checks = SyncChecks(interval)
    assert [sync for sync in range(1, 8) if checks.due()] == expected


def test_the_tolerance_is_wider_where_one_side_computes_in_half_precision():
    exact, engine, learner = (
        SyncChecks(1, engine_dtype=e, learner_dtype=own).tolerance
        for e, own in [("float32", "float32"), ("bfloat16", "float32"), ("float32", "bfloat16")]
    )
    assert exact < engine == learner
    assert SyncChecks(1, 0.25, engine_dtype="bfloat16").tolerance == 0.25


def test_a_gap_that_is_not_a_number_is_a_complaint():
    checks = SyncChecks(1)
    gap = checks.gap(np.array([0.0, np.nan], np.float32), np.zeros(2, np.float32))
    assert "sync_check_tolerance" in (checks.complaint(gap, 3) or "")
    assert checks.complaint(0.0, 3) is None


@given(st.integers(2, 200_000), st.integers(3, 4096))
def test_the_probe_fits_every_model_and_is_always_the_same(vocabulary, longest):
    text = probe_text(vocabulary, longest)
    assert 2 <= len(text) < longest
    assert all(0 <= token < vocabulary for token in text)
    assert text == probe_text(vocabulary, longest)


@pytest.mark.parametrize("packing", [True, False])
def test_the_learners_probe_is_the_models_at_temperature_1(packing):
    group = local_learners(packing=packing, temperature=0.7)
    text = probe_text(99, 60)
    expected = answer_logprobs(embedded_model(), text[:1], text[1:])
    module = group._learner.module["default_policy"]
    np.testing.assert_allclose(learner_logprobs(module, text), expected, atol=1e-4)


# -- What each check finds ----------------------------------------------------------------


def without_head(weights: dict[str, Any]) -> dict[str, Any]:
    return {name: w for name, w in weights.items() if name != "lm_head.weight"}


def swapped(weights: dict[str, Any]) -> dict[str, Any]:
    a, b = (f"model.layers.{layer}.mlp.up_proj.weight" for layer in (0, 1))
    return {**weights, a: weights[b], b: weights[a]}


@pytest.mark.parametrize("by_reference", [True, False])
def test_weights_that_arrive_agree_to_a_small_part_of_the_tolerance(by_reference):
    group, engine = local_learners(), PlainEngine()
    sync = weight_sync(
        ObjectStoreTransport(group, in_process=by_reference), DirectCalls({0: engine})
    )
    for number in range(3):
        step(group, seed=number)
        report = sync.send([0])
        assert (report.served, report.failed) == ((0,), {})
        assert report.gap < sync._checks.tolerance / 100
        assert engine.version == report.version == group._learner._weights_seq_no


@pytest.mark.parametrize("tamper", [without_head, swapped, lambda _: {}])
@pytest.mark.parametrize("scale", [1e-4, 1e-2])
def test_parity_finds_a_missing_head_swapped_tensors_and_a_stale_engine(tamper, scale):
    """However small a step has moved the weights, within reason."""
    group = local_learners()
    step(group, scale=scale)
    engine = PlainEngine(tamper)
    with pytest.raises(EngineError, match=r"differ by .*sync_check_tolerance=0.001.*object_store"):
        weight_sync(ObjectStoreTransport(group), DirectCalls({0: engine})).send([0])
    assert "differ by" in engine.refusal


def test_an_engine_that_differs_is_named_and_the_others_serve():
    group = local_learners()
    step(group)
    engines = {1: PlainEngine(), 2: PlainEngine(without_head), 3: PlainEngine()}
    report = weight_sync(ObjectStoreTransport(group), DirectCalls(engines)).send([1, 2, 3])
    assert report.served == (1, 3)
    assert list(report.failed) == [2]
    assert engines[2].refusal == report.failed[2]


def test_a_runner_that_lost_its_weights_gets_those_of_the_last_sync_again():
    """Not those that the learner has meanwhile: the other runners do not serve them yet."""
    group, late = local_learners(), PlainEngine()
    calls = DirectCalls({0: PlainEngine(), 1: late})
    sync = weight_sync(ObjectStoreTransport(group), calls)
    assert sync.send_again([1]) is None
    step(group, seed=1)
    sent = sync.send([0])
    step(group, seed=2)
    assert sync.send_again([1]) == (1,)  # compared with what the learner said then
    assert late.version == sent.version


# -- With the real engine, in this process ------------------------------------------------


@pytest.fixture
def engine(session_runner, initial_weights) -> Any:
    session_runner._engine.abort_all()
    session_runner._engine.load_weights(initial_weights, 0)
    yield session_runner._engine
    session_runner._engine.load_weights(initial_weights, 0)


def test_a_learner_in_the_engines_process_is_read_by_reference(engine):
    group = local_learners()
    sync = selected_sync(group, LocalCalls(EngineInside(engine)))
    assert sync.transport.name == "in_process"
    for number in range(2):
        step(group, seed=number)
        report = sync.send([LOCAL_RUNNER])
        assert report.gap < 1e-5
        assert engine.weights_version == group._learner._weights_seq_no
    before = engine.prompt_logprobs(probe_text(99, 60))
    step(group, seed=9)  # the engine has copies: training on does not reach them
    np.testing.assert_array_equal(engine.prompt_logprobs(probe_text(99, 60)), before)


def test_the_engine_gets_the_sum_of_weights_and_adapters(engine):
    group = local_learners(lora_rank=4)
    sync = selected_sync(group, LocalCalls(EngineInside(engine)))
    step(group, scale=5e-2)
    assert sync.send([LOCAL_RUNNER]).gap < 1e-5


@pytest.mark.parametrize("how", ["changed", "missing"])
def test_checksums_find_what_does_not_arrive_as_it_was_sent(engine, initial_weights, how):
    from rllib_dapo.rollout.engine.checksums import checksum

    names = {name.removeprefix("causal_lm."): name for name in initial_weights}
    sums = {short: checksum(torch.tensor(initial_weights[n])) for short, n in names.items()}
    engine.load_weights(initial_weights, 1, sums)
    if how == "changed":
        sums["model.norm.weight"] += 1
    else:
        sums["model.extra.weight"] = 5
    with pytest.raises(EngineError, match="version 2 arrived changed: the checksum of model"):
        engine.load_weights(initial_weights, 2, sums)
    with pytest.raises(EngineError, match="weights are a mixture"):
        engine.prompt_logprobs([3, 4, 5])
    assert engine.weights_version == 1


def test_an_update_that_was_begun_and_never_finished_is_given_up_by_the_next(
    engine, initial_weights
):
    """As when the sender dies: nothing is sampled meanwhile, and a whole set cures it."""
    from rllib_dapo.rollout.engine.base import Sampling

    engine.submit("x", [5, 6, 7], 1, Sampling(1.0, 1.0, 8), seed=0)
    engine.weights.start(False)
    assert [engine.step() for _ in range(3)] == [[], [], []]
    assert engine.num_in_flight == 1
    with pytest.raises(EngineError, match="weights are a mixture"):
        engine.prompt_logprobs([3, 4, 5])
    engine.load_weights(initial_weights, 3)
    finished = []
    while engine.num_in_flight:
        finished += engine.step()
    assert finished[0].completions[0].versions == ((0, 3),)


def test_rejected_weights_are_not_sampled_from(engine, initial_weights):
    engine.weights.reject("as planned")
    with pytest.raises(EngineError, match="as planned"):
        engine.step()
    engine.load_weights(initial_weights, 1)
    engine.step()


def test_the_probe_leaves_running_requests_alone_and_loses_none_that_finish(engine):
    from rllib_dapo.rollout.engine.base import Sampling

    def answers(*, probing: bool) -> dict[str, Any]:
        for number in range(4):
            sampling = Sampling(1.0, 1.0, 1 + number)
            engine.submit(str(number), [5, 6, 7, 8], 2, sampling, seed=10 * number)
        finished: dict[str, Any] = {}
        while engine.num_in_flight:
            if probing:
                engine.prompt_logprobs(probe_text(99, 60))
            for request in engine.step():
                finished[request.request_id] = [a.token_ids.tolist() for a in request.completions]
        return finished

    expected = answers(probing=False)
    assert answers(probing=True) == expected
    assert len(expected) == 4


def test_an_engine_says_where_it_computes(engine):
    assert engine.places() == [place_of("cpu")]
