"""Two learners over gloo train as one does, however uneven their shares are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from learner_groups import NAMES, TOLERANCE, Reference, learner_group, scenarios, weights_of
from learners import report_of
from reference_model import batch_of, random_rows

from rllib_dapo.learner.batch_io import to_multi_agent_batch
from rllib_dapo.model.batching import split_for_ranks

# Collectives wait half an hour for a partner that does not come.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def pair(ray_session, tiny_model) -> Any:
    """Two remote learners."""
    group = learner_group(tiny_model, 2)
    yield group
    group.shutdown()


@pytest.fixture(scope="module")
def history(pair, policy, tiny_model) -> dict[str, Any]:
    """All scenarios one after the other: both learners, the reference, and the reports."""
    reference, seen = Reference(tiny_model), {}
    for name, (shares, steps) in scenarios(policy).items():
        expected_report = reference.update(shares, steps)
        results = pair.update(
            batches=[to_multi_agent_batch(share) for share in shares],
            num_total_minibatches=steps,
            num_epochs=1,
        )
        (expected,) = weights_of(reference.group)
        seen[name] = (weights_of(pair), expected, report_of(results[0]), expected_report)
    return seen


@pytest.mark.parametrize("name", NAMES)
def test_two_learners_have_the_weights_of_one(history, name):
    (first, second), expected, _, _ = history[name]
    assert torch.equal(first, second)
    torch.testing.assert_close(first, expected, rtol=0, atol=TOLERANCE)


def test_the_weights_really_move(history):
    moved = [history[a][1] - history[b][1] for a, b in zip(NAMES[1:], NAMES, strict=False)]
    assert all(float(m.abs().max()) > 20 * TOLERANCE for m in moved)


@pytest.mark.parametrize("name", NAMES)
def test_two_learners_report_what_one_reports(history, name):
    _, _, got, expected = history[name]
    for key in set(expected) - {"tokens_per_s"}:
        assert got[key] == pytest.approx(expected[key], rel=1e-3, abs=1e-5), key


def test_a_step_that_one_learner_must_skip_is_skipped_by_both(pair, policy, history):
    batch = batch_of(policy, random_rows([4, 4, 4, 4]))
    shares = split_for_ranks(batch, 2)
    broken = replace(shares[1], advantages=np.full(len(shares[1]), np.inf, np.float32))
    before, _ = weights_of(pair)
    results = pair.update(
        batches=[to_multi_agent_batch(share) for share in (shares[0], broken)],
        num_total_minibatches=1,
        num_epochs=1,
    )
    assert report_of(results[0])["updates_skipped"] == 1
    for after in weights_of(pair):
        assert torch.equal(after, before)


def test_a_step_without_a_token_on_any_learner_is_not_taken_by_either(pair, policy, history):
    batch = batch_of(policy, random_rows([4, 4, 4, 4]))
    nothing = replace(batch, loss_mask=np.zeros(len(batch), np.bool_))
    before, _ = weights_of(pair)
    results = pair.update(
        batches=[to_multi_agent_batch(share) for share in split_for_ranks(nothing, 2)],
        num_total_minibatches=2,
        num_epochs=1,
    )
    report = report_of(results[0])
    assert (report["updates"], report["updates_empty"]) == (0, 2)
    for after in weights_of(pair):
        assert torch.equal(after, before)


def test_two_learners_draw_the_groups_that_one_draws(pair, policy, tiny_model, history):
    """One of them has nothing of a group, and each minibatch is two groups."""

    def by_group(learner: Any) -> None:
        learner.config._is_frozen = False
        learner.config.minibatch_by, learner.config.loss_aggregation = "group", "group_token_mean"
        learner.config._is_frozen = True

    batch = batch_of(
        policy, random_rows([12, 1, 3, 5, 8, 2, 4, 6]), groups=[0, 0, 0, 1, 1, 2, 3, 3]
    )
    settings = {"num_total_minibatches": 2, "num_epochs": 2}
    single = learner_group(tiny_model, 0)
    single.set_state(pair.get_state())
    for group in (single, pair):
        group.foreach_learner(by_group)
    (one,) = single.update(batch=to_multi_agent_batch(batch), **settings)
    shares = [to_multi_agent_batch(share) for share in split_for_ranks(batch, 2)]
    two = pair.update(batches=shares, **settings)
    (expected,) = weights_of(single)
    for got in weights_of(pair):
        torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE)
    expected_report, report = report_of(one), report_of(two[0])
    assert report["updates"] == expected_report["updates"] == 4
    assert report["loss"] == pytest.approx(expected_report["loss"], abs=1e-5)


def test_a_call_reaches_every_learner_with_its_arguments(pair):
    def rank_and(learner: Any, number: int) -> tuple[int, int]:
        return learner._learner_index, number

    results = pair.foreach_learner(rank_and, number=7)
    assert [result.get() for result in results] == [(0, 7), (1, 7)]


def test_a_call_to_some_of_the_learners_is_refused(pair):
    with pytest.raises(TypeError, match=r"leave out \['timeout_seconds'\]"):
        pair.foreach_learner(lambda learner: None, timeout_seconds=5)


def test_one_remote_learner_trains_as_a_local_one(ray_session, tiny_model, policy):
    local, remote = learner_group(tiny_model, 0), learner_group(tiny_model, 1)
    batch = batch_of(policy, random_rows([5, 1, 3, 7, 2]))
    for _ in range(3):
        for group, data in (
            (local, {"batch": to_multi_agent_batch(batch)}),
            (remote, {"batches": [to_multi_agent_batch(batch)]}),
        ):
            group.update(**data, num_total_minibatches=2, num_epochs=2)
    try:
        torch.testing.assert_close(
            weights_of(remote)[0], weights_of(local)[0], rtol=0, atol=TOLERANCE
        )
    finally:
        remote.shutdown()
