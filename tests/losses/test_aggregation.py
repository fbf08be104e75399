"""The weights of tokens in the loss: four ways to average, each over the whole minibatch."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from rllib_dapo.errors import SettingError, TrainingError
from rllib_dapo.losses.aggregation import kept_lengths, loss_totals, loss_weights
from rllib_dapo.settings.choices import Aggregation

AGGREGATIONS = get_args(Aggregation)
L_MAX = 9
GROUPS = 4


@st.composite
def rows(draw, min_rows=0):
    """(kept tokens, group) of sequences; some have none."""
    return draw(
        st.lists(st.tuples(st.integers(0, L_MAX), st.integers(0, GROUPS - 1)), min_size=min_rows)
    )


def columns(rows):
    """The same as two arrays."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def totals_of(rows):
    return loss_totals(*columns(rows), GROUPS)


def weights_of(aggregation, rows, totals=None):
    totals = totals_of(rows) if totals is None else totals
    return loss_weights(aggregation, *columns(rows), totals, max_length=L_MAX).tolist()


def reference_mean(aggregation, rows, values):
    """The average of the tokens' values, as the papers write it, with nested loops.

    `values[i]` has a value for every kept token of sequence i.
    """
    sequences = [(group, v) for (_, group), v in zip(rows, values, strict=True) if v]
    if not sequences:
        return 0.0
    if aggregation == "token_mean":
        total, count = 0.0, 0
        for _, tokens in sequences:
            for value in tokens:
                total, count = total + value, count + 1
        return total / count
    if aggregation == "sequence_mean":
        return sum(sum(t) / len(t) for _, t in sequences) / len(sequences)
    if aggregation == "constant":
        return sum(sum(t) / L_MAX for _, t in sequences) / len(sequences)
    means = []
    for group in range(GROUPS):
        tokens = [value for g, t in sequences if g == group for value in t]
        if tokens:
            means.append(sum(tokens) / len(tokens))
    return sum(means) / len(means)


def weighted_sum(weights, values):
    return sum(w * sum(v) for w, v in zip(weights, values, strict=True))


# -- Kept lengths ----------------------------------------------------------------------------


def test_masked_tokens_and_masked_completions_leave_the_length():
    token_mask = np.array([True, False, True, True, False, False, True])
    lengths = kept_lengths(
        np.array([3, 0, 1, 2, 1]), np.array([True, True, False, True, True]), token_mask
    )
    assert lengths.tolist() == [2, 0, 0, 0, 1]
    assert lengths.dtype == np.int64


@examples(60)
@given(st.lists(st.tuples(st.booleans(), st.lists(st.booleans(), max_size=6))))
def test_kept_lengths_equal_counting_in_a_loop(completions):
    got = kept_lengths(
        np.array([len(tokens) for _, tokens in completions], np.int64),
        np.array([kept for kept, _ in completions], np.bool_),
        np.array([t for _, tokens in completions for t in tokens], np.bool_),
    )
    assert got.tolist() == [sum(tokens) if kept else 0 for kept, tokens in completions]


# -- Weights ----------------------------------------------------------------------------------

EXAMPLE = [(1, 0), (3, 0), (0, 1), (4, 2), (2, 0)]  # group 1 has no kept token, 3 no sequence


def test_the_four_denominators_of_an_example():
    assert totals_of(EXAMPLE).tolist() == [4, 6, 0, 4, 0]
    assert weights_of("token_mean", EXAMPLE) == [1 / 10, 1 / 10, 0, 1 / 10, 1 / 10]
    assert weights_of("sequence_mean", EXAMPLE) == [1 / 4, 1 / 12, 0, 1 / 16, 1 / 8]
    assert weights_of("constant", EXAMPLE) == [1 / 36, 1 / 36, 0, 1 / 36, 1 / 36]
    assert weights_of("group_token_mean", EXAMPLE) == [1 / 12, 1 / 12, 0, 1 / 8, 1 / 12]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@examples(60)
@given(rows(), st.integers(0, 2**32 - 1))
def test_the_weighted_sum_is_the_mean_written_as_loops(aggregation, rows, seed):
    rng = np.random.default_rng(seed)
    values = [rng.normal(size=length).tolist() for length, _ in rows]
    expected = reference_mean(aggregation, rows, values)
    assert weighted_sum(weights_of(aggregation, rows), values) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@examples(60)
@given(rows())
def test_weights_of_all_tokens_sum_to_one_except_for_the_constant(aggregation, rows):
    weights = weights_of(aggregation, rows)
    tokens = sum(length for length, _ in rows)
    sequences = sum(length > 0 for length, _ in rows)
    total = sum(w * length for w, (length, _) in zip(weights, rows, strict=True))
    if aggregation == "constant" and tokens:
        assert total == pytest.approx(tokens / (sequences * L_MAX), abs=1e-12)
    else:
        assert total == pytest.approx(float(tokens > 0), abs=1e-12)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@examples(60)
@given(rows(), rows())
def test_sequences_without_a_kept_token_change_no_weight(aggregation, rows, others):
    empty = [(0, group) for _, group in others]
    assert weights_of(aggregation, rows + empty) == weights_of(aggregation, rows) + [0] * len(empty)


@examples(60)
@given(rows())
def test_one_group_makes_the_group_mean_the_token_mean(rows):
    one = [(length, 2) for length, _ in rows]
    assert weights_of("group_token_mean", one) == pytest.approx(weights_of("token_mean", one))


@examples(60)
@given(rows(min_rows=1))
def test_groups_of_one_sequence_make_the_group_mean_the_sequence_mean(rows):
    own = np.array([length for length, _ in rows]), np.arange(len(rows))
    totals = loss_totals(*own, len(rows))
    group, sequence = (
        loss_weights(a, *own, totals, max_length=L_MAX)
        for a in ("group_token_mean", "sequence_mean")
    )
    np.testing.assert_allclose(group, sequence, rtol=1e-15)


# -- Parts of a minibatch ---------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@examples(60)
@given(rows(), st.lists(st.integers(0, 3), min_size=40, max_size=40))
def test_weights_of_a_part_from_summed_totals_are_those_in_the_whole(aggregation, rows, owners):
    """Any split, groups cut apart, parts without a row among them."""
    places = [[i for i in range(len(rows)) if owners[i % 40] == part] for part in range(4)]
    parts = [[rows[i] for i in place] for place in places]
    totals = sum(totals_of(part) for part in parts)
    assert totals.tolist() == totals_of(rows).tolist()
    whole = weights_of(aggregation, rows)
    for place, part in zip(places, parts, strict=True):
        assert weights_of(aggregation, part, totals) == [whole[i] for i in place]


# Two learners, group 0 on both of them, with values in which the order matters.
PARTS = [[(1, 0), (5, 1)], [(7, 0), (2, 2), (3, 2)]]
VALUES = [[[1.0], [2.0] * 5], [[-3.0] * 7, [4.0] * 2, [-5.0] * 3]]
ROWS, ROW_VALUES = [*PARTS[0], *PARTS[1]], [*VALUES[0], *VALUES[1]]


def split_mean(aggregation, totals, scale=1.0):
    """What the learners' sums add up to, given the totals each of them used."""
    return scale * sum(
        weighted_sum(weights_of(aggregation, part, own), values)
        for part, values, own in zip(PARTS, VALUES, totals, strict=True)
    )


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_mean_of_the_learners_means_is_caught(aggregation):
    """What averaging gradients over learners, or over micro-batches, comes to."""
    whole = totals_of(ROWS)
    right = reference_mean(aggregation, ROWS, ROW_VALUES)
    assert split_mean(aggregation, [whole, whole]) == pytest.approx(right, abs=1e-12)
    own = [totals_of(part) for part in PARTS]
    assert abs(split_mean(aggregation, own, scale=0.5) - right) > 0.04
    assert abs(split_mean(aggregation, own) - right) > 0.04


def test_group_totals_counted_per_learner_are_caught():
    """Group 0 is on both learners: each would divide by its own part of the group."""
    whole = totals_of(ROWS)
    right = reference_mean("group_token_mean", ROWS, ROW_VALUES)
    wrong = 0.0
    for part, values in zip(PARTS, VALUES, strict=True):
        own = totals_of(part)
        own[1:] = np.where(own[1:] > 0, own[1:], whole[1:])  # N right, the group's tokens not
        wrong += weighted_sum(weights_of("group_token_mean", part, own), values)
    assert abs(wrong - right) > 0.04


def test_a_group_beyond_the_minibatch_is_refused():
    with pytest.raises(TrainingError, match=r"groups\[1\]=3 .* num_groups=3"):
        loss_totals(np.array([1, 1]), np.array([0, 3]), 3)
    with pytest.raises(TrainingError, match=r"groups\[0\]=-1"):
        loss_totals(np.array([1]), np.array([-1]), 3)


def test_unknown_aggregation_and_impossible_length_are_refused():
    lengths, groups = columns(EXAMPLE)
    totals = totals_of(EXAMPLE)
    with pytest.raises(SettingError, match="loss_aggregation='mean'") as caught:
        loss_weights("mean", lengths, groups, totals, max_length=9)  # type: ignore[arg-type]
    assert caught.value.setting == "loss_aggregation"
    with pytest.raises(SettingError, match="max_completion_length=0") as caught:
        loss_weights("constant", lengths, groups, totals, max_length=0)
    assert caught.value.setting == "max_completion_length"
    loss_weights("token_mean", lengths, groups, totals, max_length=0)
