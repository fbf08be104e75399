"""Truncated importance sampling between the engine's and the learner's distribution."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from rllib_dapo.errors import SettingError
from rllib_dapo.losses.importance import importance_weights
from rllib_dapo.settings.choices import ImportanceSampling

torch.set_num_threads(1)
LEVELS = get_args(ImportanceSampling)


def weights_of(sequences, *, engine=-3.0, dtype=torch.float64, **arguments):
    """For the log-ratios (learner − engine) of each sequence's tokens."""
    log_ratios = torch.tensor([x for row in sequences for x in row], dtype=dtype)
    ids = torch.tensor([i for i, row in enumerate(sequences) for _ in row], dtype=torch.int64)
    engine_logprobs = torch.full_like(log_ratios, engine)
    return importance_weights(log_ratios + engine, engine_logprobs, ids, **arguments)


def reference_weights(sequences, level, cap, mask_above):
    """(weight, truncated, masked) of each token, in loops over sequences and tokens."""
    rows = []
    for log_ratios in sequences:
        product = 1.0
        for x in log_ratios:
            product *= math.exp(x)
        for x in log_ratios:
            ratio = {"none": 1.0, "token": math.exp(x), "sequence": product}[level]
            masked = mask_above is not None and not 1 / mask_above <= math.exp(x) <= mask_above
            weight = 0.0 if masked else min(ratio, cap)
            rows.append((weight, not masked and ratio > cap, masked))
    return rows


@st.composite
def log_ratios(draw):
    """Uneven sequences, also empty ones; normal, so that no ratio lies on a bound."""
    lengths = draw(st.lists(st.integers(0, 5), max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return [rng.normal(0, 0.6, length).tolist() for length in lengths]


@pytest.mark.parametrize("level", LEVELS)
@examples(100)
@given(log_ratios(), st.sampled_from([1.0, 1.5, 2.0, math.inf]), st.sampled_from([None, 1.2, 3.0]))
def test_weights_equal_the_formula_in_loops(level, sequences, cap, mask_above):
    got = weights_of(sequences, level=level, cap=cap, mask_above=mask_above)
    expected = reference_weights(sequences, level, cap, mask_above)
    assert got.weights.dtype == torch.float32
    assert got.weights.tolist() == pytest.approx([w for w, _, _ in expected], rel=1e-6)
    assert got.truncated.tolist() == [t for _, t, _ in expected]
    assert got.masked.tolist() == [m for _, _, m in expected]


def test_an_example_of_every_level():
    sequences = [[math.log(3.0), math.log(0.5)], [math.log(0.25)]]
    assert weights_of(sequences, level="token").weights.tolist() == [2.0, 0.5, 0.25]
    assert weights_of(sequences, level="sequence").weights.tolist() == [1.5, 1.5, 0.25]
    masked = weights_of(sequences, level="none", mask_above=3.5)
    assert masked.weights.tolist() == [1.0, 1.0, 0.0]
    assert weights_of(sequences, level="token").truncated.tolist() == [True, False, False]
    assert not weights_of(sequences, level="sequence").truncated.any()


def test_the_mask_looks_at_the_token_and_the_sum_at_the_whole_sequence():
    got = weights_of([[math.log(8.0), math.log(0.2)]], level="sequence", mask_above=6.0)
    assert got.masked.tolist() == [True, False]
    assert got.weights.tolist() == [0.0, pytest.approx(1.6)]


@pytest.mark.parametrize("level", LEVELS)
def test_an_engine_that_agrees_changes_nothing(level):
    got = weights_of([[0.0] * 5, [0.0]], level=level, cap=1.0, mask_above=1.01)
    assert got.weights.tolist() == [1.0] * 6
    assert not (got.truncated | got.masked).any()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_weight_is_never_zero_or_infinite_unless_masked(level, dtype):
    """exp(−120) is 0 in float32: such a token would leave the denominator unseen."""
    got = weights_of([[-120.0], [-1.0] * 500, [120.0]], level=level, cap=math.inf, dtype=dtype)
    assert (got.weights > 0).all()
    assert got.weights.isfinite().all()
    assert not got.masked.any()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_undefined_ratio_is_masked_and_spoils_no_other_token(level, bad):
    got = weights_of([[bad, 0.3], [0.1]], level=level)
    clean = weights_of([[0.3], [0.1]], level=level)
    assert got.masked.tolist() == [True, False, False]
    assert got.weights.tolist() == [0.0, *clean.weights.tolist()]
    both = importance_weights(
        torch.tensor([-math.inf]), torch.tensor([-math.inf]), torch.tensor([0]), level=level
    )
    assert both.weights.tolist() == [0.0]


def test_weights_carry_no_gradient():
    learner = torch.tensor([-1.0], requires_grad=True)
    got = importance_weights(learner, torch.tensor([-1.2]), torch.tensor([0]), level="token")
    assert not got.weights.requires_grad


@examples(60)
@given(log_ratios(), st.randoms(use_true_random=False))
def test_order_and_numbering_of_the_sequences_change_nothing(sequences, random):
    order = list(range(len(sequences)))
    random.shuffle(order)
    got = weights_of([sequences[i] for i in order], level="sequence").weights.tolist()
    ends = list(itertools.accumulate((len(row) for row in sequences), initial=0))
    whole = weights_of(sequences, level="sequence").weights.tolist()
    assert got == [w for i in order for w in whole[ends[i] : ends[i + 1]]]


def expectations(level, cap):
    """E_learner[f] and Σ_engine w·f, exactly, over all completions of two tokens out of three."""
    generator = torch.Generator().manual_seed(3)
    engine, learner = torch.randn(2, 4, 3, generator=generator).double().log_softmax(-1)
    completions = list(itertools.product(range(3), repeat=2))
    # The second token's distribution depends on the first: row 1 + first token.
    logprobs = [
        torch.stack([table[[0, 1 + a], [a, b]] for a, b in completions])
        for table in (learner, engine)
    ]
    ids = torch.arange(len(completions)).repeat_interleave(2)
    weights = importance_weights(
        *(table.flatten() for table in logprobs), ids, level=level, cap=cap
    ).weights.reshape(-1, 2)
    value = torch.arange(len(completions), dtype=torch.float64)
    learner_mean, engine_mean = ((t.sum(1).exp() * value).sum() for t in logprobs)
    weighted = (logprobs[1].sum(1).exp() * weights[:, 1] * value).sum()
    return learner_mean.item(), weighted.item(), engine_mean.item()


def test_sequence_weights_make_the_engines_mean_the_learners():
    """What the correction is for, without a cap; token weights are an approximation."""
    wanted, got, uncorrected = expectations("sequence", math.inf)
    assert got == pytest.approx(wanted, rel=1e-6)
    assert abs(uncorrected - wanted) > 0.1
    assert abs(expectations("token", math.inf)[1] - wanted) > 0.01
    assert expectations("sequence", 2.0)[1] < wanted  # the cap's bias


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ({"level": "completion"}, "importance_sampling"),
        ({"level": "token", "cap": 0.9}, "importance_cap"),
        ({"level": "token", "cap": math.nan}, "importance_cap"),
        ({"level": "token", "mask_above": 1.0}, "importance_mask_above"),
        ({"level": "none", "mask_above": 0.5}, "importance_mask_above"),
    ],
)
def test_impossible_settings_are_refused(arguments, setting):
    with pytest.raises(SettingError, match=f"{setting}=") as caught:
        weights_of([[0.0]], **arguments)
    assert caught.value.setting == setting
