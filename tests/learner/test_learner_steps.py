"""The steps of an update: schedule, decay, skipping, state, and what is reported."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from learners import KEYS, gradient, make_learner, parameters, update
from ray.rllib.core.learner.training_data import TrainingData
from strategies import rows_of

from rllib_dapo.errors import TrainingError
from rllib_dapo.learner.batch_io import (
    from_multi_agent_batch,
    load_token_batch,
    to_multi_agent_batch,
)

pytestmark = pytest.mark.usefixtures("one_thread")


# -- Steps --------------------------------------------------------------------------------


def test_every_completion_is_used_exactly_once_per_epoch(tiny_model, batch):
    learner = make_learner(tiny_model)
    iterator = learner._create_iterator_if_necessary(
        training_data=TrainingData(batch=to_multi_agent_batch(batch)),
        num_total_minibatches=3,
        num_epochs=2,
    )
    parts = [rows_of(from_multi_agent_batch(part)) for part in iterator]
    assert sorted(len(part) for part in parts[:3]) == [2, 2, 3]
    epochs = [[row for part in parts[i : i + 3] for row in part] for i in (0, 3)]
    assert Counter(epochs[0]) == Counter(epochs[1]) == Counter(rows_of(batch))
    assert epochs[0] != epochs[1]


def test_the_learning_rate_warms_up_linearly_and_a_restored_run_goes_on_in_it(tiny_model, batch):
    settings = {"lr": 1e-3, "warmup_iterations": 4}
    learner = make_learner(tiny_model, **settings)
    rates = [update(learner, batch, steps=2)["lr"] for _ in range(6)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])

    first = make_learner(tiny_model, **settings)
    for _ in range(2):
        update(first, batch)
    second = make_learner(tiny_model, **settings)
    second.set_state(first.get_state())
    assert update(second, batch)["lr"] == pytest.approx(0.75e-3)


def test_no_warm_up_begins_with_the_whole_learning_rate(tiny_model, batch):
    assert update(make_learner(tiny_model, warmup_iterations=0), batch)["lr"] == 1e-3


def test_weight_decay_is_decoupled_and_on_all_parameters(tiny_model, batch):
    """With a gradient of zero AdamW still shrinks every weight by lr times the decay."""
    nothing = replace(batch, advantages=np.zeros(len(batch), np.float32))
    learner = make_learner(tiny_model, lr=0.1, weight_decay=0.5)
    before = parameters(learner).clone()
    update(learner, nothing)
    torch.testing.assert_close(parameters(learner), before * (1 - 0.1 * 0.5))


def test_the_gradient_is_clipped_to_its_norm_and_the_norm_before_is_reported(tiny_model, batch):
    free = make_learner(tiny_model, lr=0.0)
    norm = float(gradient(free, batch).norm())
    bounded = make_learner(tiny_model, lr=0.0, grad_clip=norm / 4)
    assert float(gradient(bounded, batch).norm()) == pytest.approx(norm / 4, rel=1e-3)
    assert update(bounded, batch)["grad_norm"] == pytest.approx(norm, rel=1e-3)


def test_the_learning_rate_falls_as_half_a_cosine_after_the_warm_up(tiny_model, batch):
    settings = {"warmup_iterations": 2, "lr_schedule": "cosine", "lr_decay_iterations": 6}
    learner = make_learner(tiny_model, lr=1e-3, lr_end_factor=0.2, **settings)
    rates = [update(learner, batch)["lr"] for _ in range(8)]
    falling = [0.2 + 0.8 * (1 + math.cos(math.pi * k / 4)) / 2 for k in range(5)]
    expected = [0.5, 1.0, *falling, 0.2]
    assert rates == pytest.approx([1e-3 * factor for factor in expected])


def test_an_update_that_is_not_finite_is_skipped_counted_and_in_the_end_an_error(tiny_model, batch):
    learner = make_learner(tiny_model, max_skipped_updates=2, weight_decay=0.1)
    broken = replace(batch, advantages=np.full(len(batch), np.inf, np.float32))
    before = parameters(learner).clone()
    report = update(learner, broken)
    assert torch.equal(parameters(learner), before)
    assert (report["updates"], report["updates_skipped"]) == (0, 1)
    assert math.isfinite(report["loss"])

    report = update(learner, batch)  # a good one begins the count anew
    assert not torch.equal(parameters(learner), before)
    assert (report["updates"], report["updates_skipped"]) == (1, 0)
    update(learner, broken)
    with pytest.raises(TrainingError, match="max_skipped_updates=2") as stopped:
        update(learner, broken)
    (path,) = re.findall(r"\S+\.npz", str(stopped.value))
    assert Counter(rows_of(load_token_batch(Path(path)))) == Counter(rows_of(broken))


# -- State and report ---------------------------------------------------------------------


def test_a_restored_learner_goes_on_exactly_where_it_was(tiny_model, batch):
    """Weights after 2 + 2 updates equal those after 4: optimizer, minibatches and all."""
    settings = {"warmup_iterations": 8, "weight_decay": 0.1, "grad_clip": 1.0}
    whole, first, second = (make_learner(tiny_model, **settings) for _ in range(3))
    for _ in range(4):
        update(whole, batch, steps=3, epochs=2)
    for _ in range(2):
        update(first, batch, steps=3, epochs=2)
    second.set_state(first.get_state())
    assert torch.equal(parameters(second), parameters(first))
    for _ in range(2):
        update(second, batch, steps=3, epochs=2)
    assert torch.equal(parameters(second), parameters(whole))
    assert not torch.equal(parameters(second), parameters(first))


def test_every_learner_metric_is_reported_and_finite(tiny_model, batch):
    report = update(make_learner(tiny_model, lr=0.05), batch, steps=3)
    assert set(report) == KEYS
    assert all(math.isfinite(value) for value in report.values())
    assert report["updates"] == 3
    assert report["clip_share_low"] + report["clip_share_high"] > 0.0
    assert 0.0 < report["entropy"] < math.log(99)


def test_metrics_are_means_over_tokens_however_they_are_split(tiny_model, batch):
    """A mean of the micro-batches' means would weigh a short one like a long one."""
    whole = update(make_learner(tiny_model, lr=0.0), batch)
    split = update(make_learner(tiny_model, lr=0.0, max_tokens_per_microbatch=1), batch)
    for key in set(whole) - {"tokens_per_s"}:
        assert split[key] == pytest.approx(whole[key], rel=1e-4, abs=1e-6), key
