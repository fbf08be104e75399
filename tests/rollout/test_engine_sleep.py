"""Sleeping engines: the order of calls to vLLM, since without a GPU none can sleep."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_calls import RecordingLLM

from rllib_dapo.errors import EngineError
from rllib_dapo.rollout.engine.served_weights import ServedWeights
from rllib_dapo.rollout.engine.vllm import colocate_refusal

WEIGHTS = {"causal_lm.a": torch.zeros(2), "causal_lm.b": torch.ones(3)}


@pytest.fixture
def llm() -> RecordingLLM:
    return RecordingLLM()


@pytest.fixture
def weights(llm) -> Any:
    served = ServedWeights(llm, own_processes=False)
    served.load(WEIGHTS, 1, None)
    llm.calls.clear()
    return served


LOAD = ["start_weight_update", "update_weights", "finish_weight_update 2"]


def test_before_new_weights_only_their_memory_is_taken_and_the_caches_after_them(llm, weights):
    """While both sets of weights are there, the key-value cache is not."""
    weights.sleep(False)
    weights.load(WEIGHTS, 2, None)
    assert llm.calls == [
        "sleep 2 keep",
        "wake_up ['weights']",
        *LOAD,
        "wake_up ['kv_cache']",
        "reset_prefix_cache True",
    ]


def test_an_engine_without_weights_refuses_to_sample_even_awake(llm, weights):
    weights.sleep(False)
    with pytest.raises(EngineError, match="given up its weights"):
        weights.require_usable()
    weights.wake_up()
    with pytest.raises(EngineError, match="given up its weights"):
        weights.require_usable()
    weights.load(WEIGHTS, 2, None)
    weights.require_usable()


def test_an_engine_that_keeps_its_weights_samples_again_when_awake(llm, weights):
    weights.sleep(True)
    with pytest.raises(EngineError, match="sleeps"):
        weights.require_usable()
    weights.wake_up()
    weights.require_usable()
    assert llm.calls == ["sleep 1 keep", "wake_up ['weights']", "wake_up ['kv_cache']"]
    assert weights.version == 1


def test_weights_that_come_piece_by_piece_wake_the_engine_in_the_same_order(llm, weights):
    weights.sleep(False)
    weights.start(False)
    weights.receive({"names": ["a"]})
    weights.receive({"names": ["b"]})
    weights.finish(2, None)
    assert [call.split()[0] for call in llm.calls] == [
        "sleep", "wake_up", "start_weight_update", "update_weights", "update_weights",
        "finish_weight_update", "wake_up", "reset_prefix_cache",
    ]  # fmt: skip


def test_an_update_that_fails_leaves_a_woken_engine_that_refuses(llm, weights):
    weights.sleep(False)
    llm.fails = "update_weights"
    with pytest.raises(EngineError, match="version 2"):
        weights.load(WEIGHTS, 2, None)
    assert "finish_weight_update 2" not in llm.calls
    with pytest.raises(EngineError, match="mixture"):
        weights.require_usable()
    llm.fails = None
    weights.load(WEIGHTS, 3, None)
    weights.require_usable()
    assert weights.version == 3


def test_sleeping_and_waking_twice_is_sleeping_and_waking_once(llm, weights):
    for _ in range(2):
        weights.sleep(True)
    for _ in range(2):
        weights.wake_up()
    assert len(llm.calls) == 3


def test_colocation_is_refused_without_a_gpu(monkeypatch):
    assert "no CUDA device" in (colocate_refusal({}) or "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert colocate_refusal({}) is None
    assert "enable_sleep_mode" in (colocate_refusal({"enable_sleep_mode": False}) or "")
