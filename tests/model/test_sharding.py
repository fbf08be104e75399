"""Two ranks over gloo, each with half of the model, against the whole model in one process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference_model import random_rows, save_tiny_model
from sharding_ranks import (
    LIMIT,
    MODELS,
    STEPS,
    VARIANTS,
    adamw,
    load,
    loss_of,
    norm_of,
    train,
    whole_run,
    work,
)
from torch import multiprocessing

from rllib_dapo.errors import SettingError
from rllib_dapo.model.sharding import clip_gradient_norm, decoder_layers, is_sharded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# float32, sums in another order; Adam divides small differences by small gradients.
TOLERANCE = 2e-5


# -- Fixtures -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sharding")
    for name, tied in MODELS.items():
        save_tiny_model(folder / name, tied=tied)
    save_tiny_model(folder / "deeper", layers=3)
    return folder


@pytest.fixture(scope="module")
def wholes(folder, one_thread) -> dict[str, dict[str, Any]]:
    return {name: whole_run(folder / name) for name in MODELS}


@pytest.fixture(scope="module")
def ranks(folder, wholes) -> list[dict[str, Any]]:
    """What two processes found."""
    states = {}
    for name in MODELS:
        model = load(folder / name)
        optimizer = adamw(model)
        train(model, optimizer, range(2), (0, 1))
        states[name] = {"state": model.state_dict(), "optimizer": optimizer.state_dict()}
    context = multiprocessing.spawn(work, args=(folder, states), nprocs=2, join=False)
    end = time.monotonic() + 150
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < end, "the ranks wait for each other"
    finally:
        for process in context.processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def assert_same(got: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, rtol=0, atol=tolerance, msg=name)


# -- Tests ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_each_rank_holds_a_part_of_rank_0s_model(ranks, folder, name):
    loaded = load(folder / name).state_dict()
    for rank in ranks:
        assert_same(rank[name]["start"], loaded, 0.0)
        assert rank[name]["all"] * 0.45 < rank[name]["own"] < rank[name]["all"] * 0.55
        assert rank[name]["moments_are_slices"]
        assert rank[name]["tied"] is MODELS[name]


@pytest.mark.parametrize("name", MODELS)
def test_buffers_outside_of_the_state_are_rank_0s(ranks, wholes, name):
    for rank in ranks:
        assert len(rank[name]["frequencies"]) == len(wholes[name]["frequencies"]) > 0
        for got, expected in zip(
            rank[name]["frequencies"], wholes[name]["frequencies"], strict=True
        ):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_norm_are_those_of_one_process(ranks, wholes, name):
    losses = np.sum([rank[name]["losses"] for rank in ranks], axis=0)
    np.testing.assert_allclose(losses, wholes[name]["losses"], rtol=1e-5)
    assert ranks[0][name]["norms"] == ranks[1][name]["norms"]
    np.testing.assert_allclose(ranks[0][name]["norms"], wholes[name]["norms"], rtol=1e-5)
    assert min(wholes[name]["norms"]) > 2 * LIMIT


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_moments_after_five_steps_are_those_of_one_process(ranks, wholes, name):
    for rank in ranks:
        assert_same(rank[name]["state"], wholes[name]["state"], TOLERANCE)
        moments, expected = rank[name]["optimizer"], wholes[name]["optimizer"]
        assert moments["param_groups"] == expected["param_groups"]
        assert list(moments["state"]) == list(expected["state"])
        for number, values in expected["state"].items():
            assert_same(moments["state"][number], values, TOLERANCE)
    moved = wholes[name]["state"]["lm_head.weight"] - ranks[0][name]["start"]["lm_head.weight"]
    assert moved.abs().max() > 50 * TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_names_and_order_of_parameters_stay(ranks, wholes, name):
    assert ranks[0][name]["names"] == ranks[1][name]["names"] == wholes[name]["names"]


@pytest.mark.parametrize("name", MODELS)
def test_a_state_of_one_process_goes_on_in_two(ranks, wholes, name):
    for rank in ranks:
        assert_same(rank[name]["went_on"], wholes[name]["state"], TOLERANCE)
        assert rank[name]["untouched"]  # it may be read-only: memory that Ray shares
        assert rank[name]["left_out"] == 0
        assert rank[name]["left_out_moments"] == {}


@pytest.mark.parametrize("name", MODELS)
def test_a_state_of_two_goes_on_in_one_process(ranks, folder, name):
    """Both a model and an optimizer that are not sharded read it as their own."""
    model = load(folder / name)
    optimizer = adamw(model)
    model.load_state_dict(ranks[0][name]["state"])
    optimizer.load_state_dict(ranks[0][name]["optimizer"])
    assert all(int(s["step"]) == STEPS for s in optimizer.state_dict()["state"].values())
    train(model, optimizer, range(1), (0, 1))


def test_an_average_instead_of_the_sum_would_be_noticed(ranks, wholes):
    norm = wholes["tied"]["norms"][0]
    assert ranks[0]["wrong_average"] == pytest.approx(norm / 2, rel=1e-5)


def test_half_precision_is_for_computing_only(ranks, wholes):
    for rank in ranks:
        found = rank["half_precision"]
        assert set(found["seen"]) == {torch.bfloat16}
        assert found["masters"] == found["grads"] == {torch.float32}
        assert found["norm"] == pytest.approx(wholes["tied"]["norms"][0], rel=0.05)
        assert found["norm"] != pytest.approx(wholes["tied"]["norms"][0], rel=1e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_checkpointed_layers_and_frozen_weights_have_the_gradient_of_one_process(
    ranks, folder, name
):
    expected = norm_of(VARIANTS[name](load(folder / "tied")), (0, 1))
    assert expected > 0.1
    assert [rank[name] for rank in ranks] == [pytest.approx(expected, rel=1e-5)] * 2


def test_every_rank_sees_that_a_gradient_of_one_is_not_finite(ranks):
    assert all(np.isnan(rank["not_finite"]) for rank in ranks)


def test_a_state_loaded_between_passes_without_gradient_counts(ranks, folder):
    model = load(folder / "tied")
    row = random_rows([4])[0]
    with torch.no_grad():
        expected = [loss_of(model, row, 1.0)]
        for param in model.parameters():
            param.add_(0.1)
        expected.append(loss_of(model, row, 1.0))
    for rank in ranks:
        torch.testing.assert_close(rank["without_gradient"], expected, rtol=1e-5, atol=1e-5)
    assert abs(expected[0] - expected[1]) > 0.1


def test_mistakes_are_named_on_every_rank(ranks):
    for rank in ranks:
        assert "learners 0 and 1 built different models" in rank["other_model"]
        assert "'model.norm.weight'" in rank["missing"]
        assert "model.norm.weight has the shape (2,)" in rank["shape"]


# -- Without other processes ----------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 1e-2, 1e3])
def test_clipping_whole_gradients_does_what_torch_does(limit):
    torch.manual_seed(0)
    mine = [torch.nn.Parameter(torch.randn(shape)) for shape in ((3, 2), (5,), ())]
    for param in mine:
        param.grad = torch.randn_like(param)
    mine.append(torch.nn.Parameter(torch.ones(2)))  # has no gradient
    others = [p.detach().clone().requires_grad_() for p in mine]
    for other, param in zip(others, mine, strict=True):
        other.grad = None if param.grad is None else param.grad.clone()
    expected = torch.nn.utils.clip_grad_norm_(others, float("inf") if limit is None else limit)
    torch.testing.assert_close(clip_gradient_norm(mine, limit), expected)
    for other, param in zip(others[:3], mine[:3], strict=True):
        torch.testing.assert_close(param.grad, other.grad)


def test_no_gradient_has_the_norm_zero():
    assert float(clip_gradient_norm([torch.nn.Parameter(torch.ones(2))], 1.0)) == 0.0


def test_a_model_that_does_not_name_its_layers_is_refused():
    model = torch.nn.Linear(2, 2)
    assert not is_sharded(model)
    with pytest.raises(SettingError, match="shard_model=True: Linear"):
        decoder_layers(model)
