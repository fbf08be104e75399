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
