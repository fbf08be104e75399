"""What travels: the learner's tensors one by one, their checksums, shared memory."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rllib_dapo.algorithm.weight_sync.source import CheckedPass, LearnerWeights
from rllib_dapo.errors import EngineError
from rllib_dapo.model.lora_state import merged_state
from rllib_dapo.rollout.engine import checksums
from rllib_dapo.rollout.engine.checksums import checksum, weighted_sum
from rllib_dapo.rollout.engine.shared_tensors import open_shared_tensors, shared_tensors

SEGMENTS = Path("/dev/shm")  # noqa: S108 - where Linux has them

pytestmark = pytest.mark.timeout(60)

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.float64]


# -- Checksums ----------------------------------------------------------------------------


@given(arrays.arrays(np.int32, st.integers(0, 40), elements=st.integers(-(2**31), 2**31 - 1)))
def test_the_weighted_sum_is_its_formula(words):
    expected = sum((1 + i % 65521) * int(w) for i, w in enumerate(words))
    assert weighted_sum(torch.from_numpy(words)) == (expected + 2**63) % 2**64 - 2**63


def test_the_weighted_sum_does_not_depend_on_how_it_is_cut(monkeypatch):
    words = torch.arange(300_000, dtype=torch.int32) * 7919
    whole = weighted_sum(words)
    monkeypatch.setattr(checksums, "_CHUNK", 65521)
    assert weighted_sum(words) == whole


@pytest.mark.parametrize("function", [checksum, lambda t: weighted_sum(t.view(-1))])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_checksum_sees_one_changed_element_and_two_that_changed_places(function, dtype):
    tensor = torch.arange(1, 101).to(dtype).view(10, 10)
    changed, swapped = tensor.clone(), tensor.clone()
    changed[7, 3] += 1
    swapped[0, 0], swapped[9, 9] = tensor[9, 9], tensor[0, 0]
    assert len({function(t) for t in (tensor, changed, swapped)}) == 3
    assert function(tensor) == function(tensor.clone())


def test_a_checksum_is_of_the_values_however_they_are_laid_out():
    tensor = torch.randn(6, 8)
    assert checksum(tensor.t().contiguous().t()) == checksum(tensor)


# -- The stream of the learner's tensors --------------------------------------------------


@pytest.fixture(scope="module", params=tiny_models.KINDS)
def folder(request, tmp_path_factory) -> Path:
    return tiny_models.save(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_stream_has_the_whole_state_by_the_plain_models_names(folder, adapters, dtype):
    plain = tiny_models.load(folder)
    expected = plain.state_dict()
    model, layout = plain, None
    if adapters:
        model, layout = tiny_models.adapted(folder)
        tiny_models.train(model)
        expected = merged_state(model.state_dict(), layout)
    weights = LearnerWeights(model, layout, dtype)
    sent = list(weights)
    assert [name for name, _ in sent] == list(expected) == list(plain.state_dict())
    for (name, tensor), meta in zip(sent, weights.metadata(), strict=True):
        assert (meta.name, meta.dtype, meta.shape) == (name, tensor.dtype, tuple(tensor.shape))
        torch.testing.assert_close(tensor, expected[name].to(dtype or torch.float32))
        assert not tensor.requires_grad


def test_tied_heads_are_sent_too(folder):
    sent = dict(LearnerWeights(tiny_models.load(folder), None))
    assert "lm_head.weight" in sent


def test_a_pass_that_was_broken_off_is_gone_through_to_its_end():
    """Each learner gathers every tensor, or the others would wait for it."""
    gathered: list[str] = []

    class Source(LearnerWeights):
        def __init__(self) -> None: ...

        def __iter__(self) -> Any:
            for name in "abcd":
                gathered.append(name)
                yield name, torch.ones(3)

    one_pass = CheckedPass(Source(), with_checksums=True)
    assert next(iter(one_pass))[0] == "a"
    one_pass.finish()
    assert gathered == list("abcd")
    with pytest.raises(EngineError, match="given up"):
        list(one_pass)  # only once
    assert one_pass.checksums == {"a": checksum(torch.ones(3))}


# -- Shared memory ------------------------------------------------------------------------


def some_tensors() -> list[tuple[str, torch.Tensor]]:
    shapes = [(3, 5), (), (0, 4), (7,)]
    return [
        (f"{dtype}{shape}", (100 * torch.rand(shape)).to(dtype))
        for dtype in DTYPES
        for shape in shapes
    ]


def test_tensors_come_out_of_shared_memory_as_they_went_in():
    tensors = some_tensors()
    with shared_tensors(tensors) as segment:
        opened = dict(open_shared_tensors(segment))
    assert opened.keys() == {name for name, _ in tensors}
    for name, before in tensors:  # after the segment's end
        after = opened[name]
        assert (before.dtype, before.shape) == (after.dtype, after.shape)
        torch.testing.assert_close(before, after, rtol=0, atol=0)


def test_tied_and_transposed_tensors_go_through_shared_memory_like_others():
    table = torch.arange(6.0).view(2, 3)
    tensors = {"tied": table, "head": table, "transposed": table.t(), "row": table[1]}
    with shared_tensors(tensors.items()) as segment:
        opened = dict(open_shared_tensors(segment))
    for name, before in tensors.items():
        torch.testing.assert_close(before, opened[name], rtol=0, atol=0)


def test_a_readers_copy_cannot_change_what_others_read():
    with shared_tensors([("a", torch.zeros(4))]) as segment:
        ((_, mine),) = open_shared_tensors(segment)
        mine += 1
        ((_, others),) = open_shared_tensors(segment)
        assert others.tolist() == [0.0] * 4


@pytest.mark.parametrize("fails", [False, True])
def test_a_segment_is_gone_after_its_use_whether_it_fails_or_not(fails):
    segment = ""
    try:
        with shared_tensors([("a", torch.zeros(4))]) as segment:
            assert (SEGMENTS / segment).exists()
            if fails:
                raise RuntimeError
    except RuntimeError:
        pass
    assert segment
    assert not (SEGMENTS / segment).exists()
    with pytest.raises(FileNotFoundError):
        open_shared_tensors(segment)


def test_a_segment_whose_owner_is_killed_does_not_stay():
    script = (
        "import os, signal, sys, torch\n"
        "from rllib_dapo.rollout.engine.shared_tensors import shared_tensors\n"
        "with shared_tensors([('a', torch.zeros(4))]) as made:\n"
        "    print(made, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    segment = SEGMENTS / process.stdout.strip()
    assert process.stdout.strip()
    until = time.monotonic() + 20
    while segment.exists() and time.monotonic() < until:  # the tracker is a process of its own
        time.sleep(0.05)
    assert not segment.exists()


def test_a_thread_that_was_given_up_gathers_nothing_more():
    """Two threads that gather would each meet another tensor of the other learners."""
    gathering, gathered = threading.Event(), []

    class Slow:
        def __iter__(self) -> Any:
            for i in range(20):
                gathering.set()
                time.sleep(0.005)
                gathered.append((i, threading.get_ident()))
                yield str(i), torch.zeros(1)

    one_pass = CheckedPass(Slow(), with_checksums=False)  # type: ignore[arg-type]
    errors: list[Exception] = []

    def send() -> None:
        try:
            for _ in one_pass:
                pass
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    assert gathering.wait(10)
    one_pass.finish()
    thread.join(10)
    assert [i for i, _ in gathered] == list(range(20))
    assert {owner for _, owner in gathered[-5:]} == {threading.get_ident()}
    assert [str(error) for error in errors] == ["this transfer was given up"]
