"""Minibatches of whole groups, and minibatches without a token in the loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learners import make_learner, parameters, update
from ray.rllib.core.learner.training_data import TrainingData
from reference_model import batch_of, random_rows
from strategies import examples, make_batch, token_batches

from rllib_dapo.learner.batch_io import from_multi_agent_batch, to_multi_agent_batch
from rllib_dapo.losses.aggregation import kept_lengths, loss_totals, loss_weights
from rllib_dapo.model.batching import concatenate, group_minibatches, select, split_for_ranks

pytestmark = pytest.mark.usefixtures("one_thread")

GROUPS = 4  # `token_batches` draws group numbers below this


# -- Whole groups ---------------------------------------------------------------------------


def lengths_of(batch: Any) -> Any:
    return kept_lengths(batch.completion_lengths, batch.loss_mask, batch.importance_weights > 0)


def equation_12(batch: Any, values: list[float]) -> float:
    """The mean over the groups of the mean over each group's tokens, as loops."""
    tokens: dict[int, list[float]] = {}
    start = 0
    for length, kept, group in zip(
        batch.completion_lengths.tolist(),
        batch.loss_mask.tolist(),
        batch.groups.tolist(),
        strict=True,
    ):
        if kept and length:
            tokens.setdefault(group, []).extend(values[start : start + length])
        start += length
    means = [sum(group) / len(group) for group in tokens.values()]
    return sum(means) / len(means) if means else 0.0


@examples(80)
@given(token_batches(max_rows=9), st.integers(1, 3), st.integers(1, 5), st.integers(0, 99))
def test_each_minibatch_of_whole_groups_is_equation_12_to_the_letter(batch, ranks, steps, seed):
    """For any number of learners, with the denominators that they sum."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=int(batch.completion_lengths.sum()))
    batch = replace(batch, reference_logprobs=values)  # they travel with their rows
    cuts = [
        group_minibatches(share, GROUPS, steps, np.random.default_rng(seed))
        for share in split_for_ranks(batch, ranks)
    ]
    assert {len(cut) for cut in cuts} == {min(steps, GROUPS)}
    for parts in zip(*cuts, strict=True):
        whole = concatenate(parts)
        totals = sum(loss_totals(lengths_of(part), part.groups, GROUPS) for part in parts)
        got = 0.0
        for part in parts:
            weights = loss_weights(
                "group_token_mean", lengths_of(part), part.groups, totals, max_length=1
            )
            got += float(np.repeat(weights, part.completion_lengths) @ part.reference_logprobs)
        expected = equation_12(whole, whole.reference_logprobs.tolist())
        assert got == pytest.approx(expected, rel=1e-12, abs=1e-12)


@examples(80)
@given(token_batches(max_rows=9), st.integers(1, 3), st.integers(1, 6), st.integers(0, 99))
def test_a_group_is_in_one_minibatch_whatever_the_number_of_learners(batch, ranks, steps, seed):
    whole = group_minibatches(batch, GROUPS, steps, np.random.default_rng(seed))
    places = [(step, group) for step, part in enumerate(whole) for group in set(part.groups)]
    assert sorted(group for _, group in places) == sorted(set(batch.groups))
    shares = split_for_ranks(batch, ranks)
    for share in shares:
        cut = group_minibatches(share, GROUPS, steps, np.random.default_rng(seed))
        assert {(s, g) for s, part in enumerate(cut) for g in part.groups} <= set(places)
    assert sum(len(part) for part in whole) == len(batch)


def test_the_numbers_of_groups_differ_by_one_at_most():
    batch = make_batch([([1], [2])] * 14, groups=[i // 2 for i in range(14)])
    parts = group_minibatches(batch, 7, 3, np.random.default_rng(0))
    assert sorted(len(set(part.groups.tolist())) for part in parts) == [2, 2, 3]


@pytest.fixture(scope="module")
def grouped(policy) -> Any:
    """Four groups of two completions, of uneven lengths."""
    rows = random_rows([9, 1, 4, 3, 7, 2, 5, 6])
    rows = [(rows[i - i % 2][0], completion) for i, (_, completion) in enumerate(rows)]
    return batch_of(policy, rows, groups=[i // 2 for i in range(8)])


def parts_of(learner: Any, batch: Any, steps: int, epochs: int = 1) -> list[Any]:
    iterator = learner._create_iterator_if_necessary(
        training_data=TrainingData(batch=to_multi_agent_batch(batch)),
        num_total_minibatches=steps,
        num_epochs=epochs,
    )
    return [from_multi_agent_batch(part) for part in iterator]


def test_the_learner_draws_what_the_setting_says(tiny_model, grouped):
    by_group = parts_of(make_learner(tiny_model, minibatch_by="group"), grouped, 2, epochs=3)
    assert [len(part) for part in by_group] == [4] * 6
    for part in by_group:
        assert sorted(np.bincount(part.groups, minlength=4)) == [0, 0, 2, 2]
    assert len({tuple(sorted(part.groups.tolist())) for part in by_group}) > 2  # epochs differ
    singly = parts_of(make_learner(tiny_model), grouped, 2, epochs=3)
    assert any(1 in np.bincount(part.groups) for part in singly)


def test_the_loss_of_a_minibatch_of_groups_is_that_of_its_groups_alone(tiny_model, grouped):
    settings = {"loss_aggregation": "group_token_mean", "minibatch_by": "group", "lr": 0.0}
    learner = make_learner(tiny_model, double=True, **settings)
    alone = [update(learner, select(grouped, grouped.groups == g))["loss"] for g in range(4)]
    for steps in (1, 2, 4):
        # The weights stay, so the mean over the minibatches is the mean over all groups.
        assert update(learner, grouped, steps=steps)["loss"] == pytest.approx(
            float(np.mean(alone)), abs=1e-6
        )


# -- Nothing in the loss ----------------------------------------------------------------------


def masked(batch: Any, start: int = 0, stop: int | None = None) -> Any:
    mask = batch.loss_mask.copy()
    mask[start:stop] = False
    return replace(batch, loss_mask=mask)


def optimizer_state(learner: Any) -> dict[str, torch.Tensor]:
    (optimizer,) = learner._optimizer_parameters
    return {
        f"{number}.{key}": value.clone()
        for number, state in enumerate(optimizer.state.values())
        for key, value in state.items()
    }


@pytest.mark.parametrize("nothing", ["masked", "empty", "importance"])
def test_a_minibatch_without_a_token_in_the_loss_takes_no_step(tiny_model, batch, nothing):
    """Neither the decay nor the momentum of the step before moves the weights."""
    learner = make_learner(tiny_model, weight_decay=0.5, entropy_coeff=0.1)
    report = update(learner, batch)
    assert (report["updates"], report["updates_empty"]) == (1, 0)
    before, state = parameters(learner).clone(), optimizer_state(learner)
    assert state
    unusable = {
        "masked": masked(batch),
        "empty": make_batch([([3, 4], []), ([5], [])]),
        "importance": replace(batch, importance_weights=np.zeros_like(batch.old_logprobs)),
    }[nothing]
    report = update(learner, unusable)
    assert (report["updates"], report["updates_skipped"], report["updates_empty"]) == (0, 0, 1)
    assert report["loss"] == report["grad_norm"] == report["tokens_trained"] == 0.0
    assert torch.equal(parameters(learner), before)
    after = optimizer_state(learner)
    assert all(torch.equal(after[key], value) for key, value in state.items())


def test_an_update_goes_on_as_if_the_empty_minibatch_were_not_there(tiny_model, grouped):
    """Two of the four groups are masked, and each is a minibatch of its own."""
    settings = {"minibatch_by": "group", "weight_decay": 0.1, "grad_clip": 1.0}
    some = masked(grouped, 2, 6)
    learner, other = (make_learner(tiny_model, **settings) for _ in range(2))
    other._weights_seq_no += 1  # as `update` does before it draws
    order = [int(part.groups[0]) for part in parts_of(other, some, 4)]
    other._weights_seq_no -= 1
    report = update(learner, some, steps=4)
    assert (report["updates"], report["updates_empty"]) == (2, 2)
    kept = [select(some, some.groups == g) for g in order if g in (0, 3)]
    other._create_iterator_if_necessary = lambda **_: [to_multi_agent_batch(p) for p in kept]
    assert update(other, some)["updates"] == 2
    assert torch.equal(parameters(learner), parameters(other))
