"""Two learners over gloo train as one does, however uneven their shares are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from learners import ENV, learner_config, report_of
from reference_model import batch_of, random_rows

from rllib_dapo.ops.batching import concatenate, minibatches, split_for_ranks
from rllib_dapo.registration import make_env
from rllib_dapo.rl_batch import to_multi_agent_batch
from rllib_dapo.types import TokenBatch

# Collectives wait half an hour for a partner that does not come.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# float32, sums in another order; Adam divides small differences by small gradients.
TOLERANCE = 2e-5
SETTINGS = {"lr": 1e-3, "weight_decay": 0.1, "grad_clip": 1.0}


def learner_group(model: Any, num_learners: int, **settings: Any) -> Any:
    config = learner_config(model, **{**SETTINGS, **settings})
    config.learners(num_learners=num_learners, num_cpus_per_learner=1)
    return config.build_learner_group(env=make_env(ENV))


def weights_of(group: Any) -> list[torch.Tensor]:
    """The weights of each learner."""

    def flat(learner: Any) -> Any:
        return torch.cat([p.detach().flatten() for p in learner._params.values()]).numpy()

    return [torch.from_numpy(np.array(r.get())) for r in group.foreach_learner(flat)]


class Reference:
    """One learner in this process, fed the minibatches that several have between them."""

    def __init__(self, model: Any) -> None:
        self.group = learner_group(model, 0)
        self._learner = self.group._learner
        self._parts: list[TokenBatch] = []
        self._learner._create_iterator_if_necessary = lambda **_: map(
            to_multi_agent_batch, self._parts
        )

    def update(self, shares: list[TokenBatch], steps: int) -> dict[str, float]:
        number = self._learner._weights_seq_no + 1
        cut = [
            minibatches(share, steps, np.random.default_rng([self._learner.config.seed, number]))
            for share in shares
        ]
        self._parts = [concatenate([c[i] for c in cut if i < len(c)]) for i in range(steps)]
        assert sum(len(part) for part in self._parts) == sum(len(share) for share in shares)
        (results,) = self.group.update(batch=to_multi_agent_batch(concatenate(shares)))
        return report_of(results)


def scenarios(model: Any) -> dict[str, tuple[list[TokenBatch], int]]:
    """Name -> each learner's share, and optimizer steps."""
    uneven = batch_of(model, random_rows([12, 1, 3, 0, 8, 2, 5, 2, 9]))
    shares = split_for_ranks(uneven, 2)
    masked = replace(shares[1], loss_mask=np.zeros(len(shares[1]), np.bool_))
    few = split_for_ranks(batch_of(model, random_rows([6, 1, 2], seed=4)), 2)
    lonely = split_for_ranks(batch_of(model, random_rows([6], seed=5)), 2)
    return {
        "uneven": (shares, 1),
        "uneven, several steps": (shares, 3),
        "all of one learner masked": ([shares[0], masked], 2),
        "fewer answers than learners in a step": (few, 2),
        "a learner without any answer": (lonely, 1),
        "uneven again": (shares, 2),
    }


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


NAMES = [
    "uneven", "uneven, several steps", "all of one learner masked",
    "fewer answers than learners in a step", "a learner without any answer", "uneven again",
]  # fmt: skip


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
