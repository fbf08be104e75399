"""The gradient of an update: what must not change it, and what must."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from learners import gradient, make_learner, update
from reference_model import EOS, LENGTHS, answer_logprobs, batch_of, random_rows
from strategies import make_batch, rows_of

from rllib_dapo.model.batching import concatenate, select

AGGREGATIONS = ["token_mean", "sequence_mean"]  # all of them: test_gradient_table.py
# The model is cast to float64; transformers still computes norms and rotations in float32.
TOLERANCE = 1e-6


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=AGGREGATIONS)
def learner(request, tiny_model) -> Any:
    """Its lr is 0: the weights stay, the gradient can be read."""
    return make_learner(tiny_model, double=True, lr=0.0, loss_aggregation=request.param)


@pytest.fixture(scope="module")
def padded(tiny_model) -> Any:
    """One that pads its micro-batches."""
    return make_learner(tiny_model, double=True, lr=0.0, packing=False)


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return float((a - b).abs().max()) <= TOLERANCE * float(a.abs().max())


def with_value(old: np.ndarray[Any, Any], index: int, value: float) -> np.ndarray[Any, Any]:
    changed = old.copy()
    changed[index] = value
    return changed


# -- The value ----------------------------------------------------------------------------


def clipped(ratio: float, advantage: float) -> float:
    return min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)


def test_the_loss_is_equation_12_written_out(learner, policy, batch):
    """And for `sequence_mean` the mean over completions of their token means."""
    sums, counts = [], []
    for prompt, completion, old, advantage, kept, _ in rows_of(batch):
        if kept and completion:
            new = answer_logprobs(policy, prompt, completion)
            sums.append(sum(clipped(r, advantage) for r in np.exp(new - np.array(old))))
            counts.append(len(completion))
    if learner.config.loss_aggregation == "token_mean":
        expected = -sum(sums) / sum(counts)
    else:
        expected = -sum(s / n for s, n in zip(sums, counts, strict=True)) / len(counts)
    assert abs(expected) > 0.01
    assert update(learner, batch)["loss"] == pytest.approx(expected, abs=1e-5)


# -- What must not change the gradient ----------------------------------------------------


def test_padding_does_not_change_the_gradient(padded, batch, monkeypatch):
    whole = gradient(padded, batch)
    assert whole.abs().max() > 1e-3
    long_and_masked = make_batch([([5] * 6, [7] * 40)], loss_mask=[False])
    assert close(whole, gradient(padded, concatenate([batch, long_and_masked])))
    monkeypatch.setattr(padded, "_layout", replace(padded._layout, pad_id=EOS))
    assert close(whole, gradient(padded, batch))


def test_a_masked_completion_counts_as_if_it_had_never_been_sampled(learner, batch):
    assert not batch.loss_mask.all()
    kept = select(batch, batch.loss_mask)
    assert close(gradient(learner, batch), gradient(learner, kept))


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
def test_a_logprob_that_is_not_finite_masks_its_whole_completion(learner, batch, bad):
    """The first completion has nine tokens; its third one has no usable log-probability."""
    poisoned = replace(batch, old_logprobs=with_value(batch.old_logprobs, 2, bad))
    expected = gradient(learner, select(batch, range(1, 7)))
    got = gradient(learner, poisoned)
    assert torch.isfinite(got).all()
    assert close(expected, got)
    report = update(learner, poisoned)
    masked_tokens = LENGTHS[0] + LENGTHS[4]
    assert report["masked_token_share"] == pytest.approx(masked_tokens / sum(LENGTHS))
    assert report["tokens_trained"] == sum(LENGTHS) - masked_tokens


# -- What must change it ------------------------------------------------------------------


@pytest.mark.parametrize("pad_id", [0, EOS])
def test_the_closing_eos_carries_loss_also_as_padding_id(padded, batch, pad_id, monkeypatch):
    monkeypatch.setattr(padded, "_layout", replace(padded._layout, pad_id=pad_id))
    last_of_first = LENGTHS[0] - 1
    old = batch.old_logprobs
    more_likely = with_value(old, last_of_first, old[last_of_first] - 0.1)
    plain = gradient(padded, batch)
    assert not close(plain, gradient(padded, replace(batch, old_logprobs=more_likely)))


def test_the_aggregations_differ(tiny_model, batch):
    token, sequence = (
        gradient(make_learner(tiny_model, lr=0.0, loss_aggregation=a), batch) for a in AGGREGATIONS
    )
    assert (token - sequence).abs().max() > 0.1 * token.abs().max()


def test_an_entropy_bonus_pulls_towards_more_entropy(tiny_model, batch):
    level = replace(batch, advantages=np.zeros(len(batch), np.float32))
    learner = make_learner(tiny_model, lr=1e-3, entropy_coeff=1.0)
    reports = [update(learner, level)["entropy"] for _ in range(4)]
    assert reports == sorted(reports)
    assert reports[-1] > reports[0] + 1e-3


# -- The ratio before the first update ----------------------------------------------------


def test_the_ratio_is_one_before_the_first_update_at_the_sampling_temperature(tiny_model, policy):
    rows = random_rows(LENGTHS)
    same = batch_of(policy, rows, temperature=0.7, noise=0.0)
    other = batch_of(policy, rows, temperature=1.0, noise=0.0)
    learner = make_learner(tiny_model, lr=0.0, temperature=0.7)
    fresh = {"weights_versions": np.zeros(sum(LENGTHS), np.int64)}

    report = update(learner, replace(same, **fresh))
    assert report["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert report["clip_share_low"] == report["clip_share_high"] == 0.0
    assert report["approx_kl"] == pytest.approx(0.0, abs=1e-5)
    assert 0.0 < report["engine_gap_max"] < 1e-4

    report = update(learner, replace(other, weights_versions=fresh["weights_versions"] + 1))
    assert abs(report["ratio_mean"] - 1.0) > 0.1
    assert report["clip_share_low"] + report["clip_share_high"] > 0.1
    assert report["engine_gap_max"] > 0.1


def test_the_engine_gap_compares_only_what_the_present_weights_sampled(tiny_model, policy):
    """Reused groups are a version old: their difference is the update, not the arithmetic."""
    batch = batch_of(policy, random_rows([5, 5]), noise=0.0)
    far = replace(batch, old_logprobs=batch.old_logprobs - np.repeat([0, 1], 5).astype(np.float32))
    learner = make_learner(tiny_model, lr=0.0)
    versions = np.repeat([0, -1], 5)
    report = update(learner, replace(far, weights_versions=versions))
    assert report["engine_gap_max"] < 1e-4
    assert report["approx_kl"] == pytest.approx(-0.5, abs=1e-4)
