"""From scored groups to the learner's batch, and what each switch of DAPO changes there."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from strategies import make_group, rows_of

from rllib_dapo.losses.aggregation import kept_lengths, loss_totals, loss_weights
from rllib_dapo.losses.clipped_objective import clipped_objective
from rllib_dapo.rollout.dynamic_sampling import DynamicSampler
from rllib_dapo.rollout.group_filter import classify
from rllib_dapo.rollout.token_batch import RewardShaping, length_penalties, make_token_batch
from rllib_dapo.types import Group, TokenBatch

OFF = RewardShaping(
    max_length=10, overlong_cache=None, overlong_filtering=False, normalize_std=True
)
SOFT = replace(OFF, overlong_cache=4)
FILTERING = replace(OFF, overlong_filtering=True)


def with_truncated(group: Group, *truncated: int) -> Group:
    """The same group with some answers cut at the limit."""
    completions = list(group.completions)
    for i in truncated:
        completions[i] = replace(completions[i], finish_reason="length")
    return replace(group, completions=tuple(completions))


def two_groups() -> list[Group]:
    """Answers of 2 to 10 tokens; the one of 10 tokens in the first group is truncated."""
    first = make_group(0, [1.0, -1.0, -1.0, 1.0], lengths=[2, 7, 10, 4])
    return [with_truncated(first, 2), make_group(1, [-1.0, 1.0], lengths=[3, 9])]


def scalar_advantages(rewards: list[float]) -> list[float]:
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / (std + 1e-6) for r in rewards]


def differing_fields(a: TokenBatch, b: TokenBatch) -> set[str]:
    return {
        f.name
        for f in fields(TokenBatch)
        if not np.array_equal(getattr(a, f.name), getattr(b, f.name))
    }


# -- The layout ---------------------------------------------------------------------------


def test_groups_are_laid_out_in_order_with_prompt_and_answer_of_each():
    batch = make_token_batch(two_groups(), OFF)
    rows = rows_of(batch)
    assert [len(completion) for _, completion, *_ in rows] == [2, 7, 10, 4, 3, 9]
    assert {prompt for prompt, *_ in rows} == {(1, 2)}
    assert {token for _, completion, *_ in rows for token in completion} == {3}
    assert batch.old_logprobs.tolist() == [-0.5] * (2 + 7 + 10 + 4 + 3 + 9)
    assert batch.groups.tolist() == [0, 0, 0, 0, 1, 1]


def test_each_token_keeps_the_version_that_sampled_it():
    first, second = two_groups()  # answers of 2, 7, 10, 4 and of 3, 9 tokens
    cut = replace(second.completions[1], versions=((0, 4), (5, 7)))
    second = replace(second, completions=(second.completions[0], cut), weights_version=4)
    batch = make_token_batch([replace(first, weights_version=6), second], OFF)
    assert batch.weights_versions.tolist() == [6] * 23 + [4] * 3 + [4] * 5 + [7] * 4


def test_two_problems_with_the_same_text_stay_two_groups():
    """Pooled, the third answer would have the mean of all four to beat."""
    same = [make_group(0, [1.0, -1.0], text="1+1=?"), make_group(7, [1.0, 0.0], text="1+1=?")]
    batch = make_token_batch(same, OFF)
    assert batch.groups.tolist() == [0, 0, 1, 1]
    expected = scalar_advantages([1.0, -1.0]) + scalar_advantages([1.0, 0.0])
    assert batch.advantages.tolist() == pytest.approx(expected, abs=1e-6)


def test_an_empty_answer_is_a_row_of_its_own():
    batch = make_token_batch([make_group(0, [1.0, -1.0], lengths=[0, 2])], SOFT)
    assert batch.completion_lengths.tolist() == [0, 2]
    assert len(batch.old_logprobs) == 2
    assert batch.advantages[0] > 0


# -- Rewards and advantages ---------------------------------------------------------------


def test_a_reward_is_the_score_plus_equation_13():
    """L_max 10, L_cache 4: nothing up to 6 tokens, -1/4 for each one more."""
    penalties = length_penalties(two_groups()[0], SOFT)
    assert penalties.tolist() == [0.0, -0.25, -1.0, 0.0]
    batch = make_token_batch(two_groups(), SOFT)
    expected = scalar_advantages([1.0, -1.25, -2.0, 1.0]) + scalar_advantages([-1.0, 1.0 - 0.75])
    assert batch.advantages.tolist() == pytest.approx(expected, abs=1e-6)


def test_the_rewards_components_come_before_equation_13_and_keep_the_score():
    first = two_groups()[0]
    extra = [0.5, 0.0, 2.0, -1.0]
    pairs = zip(first.completions, extra, strict=True)
    group = replace(first, completions=tuple(replace(c, extra_reward=e) for c, e in pairs))
    assert group.scores.tolist() == [1.0, -1.0, -1.0, 1.0]
    assert group.rewards.tolist() == [1.5, -1.0, 1.0, 0.0]
    batch = make_token_batch([group], SOFT)
    expected = scalar_advantages([1.5, -1.25, 0.0, 0.0])
    assert batch.advantages.tolist() == pytest.approx(expected, abs=1e-6)
    assert differing_fields(batch, make_token_batch([first], SOFT)) == {"advantages"}


def test_without_the_standard_deviation_an_advantage_is_a_difference():
    batch = make_token_batch(two_groups(), replace(OFF, normalize_std=False))
    assert batch.advantages.tolist() == [1.0, -1.0, -1.0, 1.0, -1.0, 1.0]


def test_truncated_answers_count_in_mean_and_deviation_though_filtered():
    batch = make_token_batch(two_groups(), FILTERING)
    assert batch.loss_mask.tolist() == [True, True, False, True, True, True]
    expected = scalar_advantages([1.0, -1.0, -1.0, 1.0])
    assert batch.advantages[:4].tolist() == pytest.approx(expected, abs=1e-6)
    without = scalar_advantages([1.0, -1.0, 1.0])
    assert batch.advantages[0] != pytest.approx(without[0], abs=1e-2)


# -- Each of the five parts alone ---------------------------------------------------------


def weights_of(batch: TokenBatch, aggregation: str) -> np.ndarray[Any, Any]:
    """The weight of each answer's tokens, all tokens kept."""
    lengths = batch.completion_lengths
    kept = kept_lengths(lengths, batch.loss_mask, np.ones(int(lengths.sum()), np.bool_))
    totals = loss_totals(kept, batch.groups, int(batch.groups.max()) + 1)
    return loss_weights(aggregation, kept, batch.groups, totals, max_length=int(lengths.max()))


def loss_of(
    batch: TokenBatch, ratio: float, *, clip_high: float = 0.2, aggregation: str = "sequence_mean"
) -> float:
    """The loss if every token became `ratio` times as likely."""
    old = torch.from_numpy(batch.old_logprobs).double()
    lengths = batch.completion_lengths
    objective = clipped_objective(
        torch.full_like(old, math.log(ratio)),
        torch.from_numpy(np.repeat(batch.advantages, lengths)).double(),
        clip_low=0.2,
        clip_high=clip_high,
    ).objective
    weights = np.repeat(weights_of(batch, aggregation), lengths)
    return -float((objective * torch.from_numpy(weights)).sum())


def grpo_loss(groups: list[Group], ratio: float) -> float:
    """GRPO written out: mean over answers of their token means, symmetric clip."""
    means = []
    for group in groups:
        advantages = scalar_advantages([c.score for c in group.completions])
        for advantage, completion in zip(advantages, group.completions, strict=True):
            clipped = min(max(ratio, 0.8), 1.2)
            tokens = [min(ratio * advantage, clipped * advantage) for _ in completion.token_ids]
            means.append(sum(tokens) / len(tokens))
    return -sum(means) / len(means)


@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.1, 1.25, 1.5])
def test_with_all_parts_off_the_loss_is_grpos(ratio):
    batch = make_token_batch(two_groups(), OFF)
    assert loss_of(batch, ratio) == pytest.approx(grpo_loss(two_groups(), ratio), abs=1e-6)


@pytest.mark.parametrize(("ratio", "matters"), [(1.1, False), (1.25, True), (0.7, False)])
def test_clip_higher_alone_matters_only_above_the_symmetric_bound(ratio, matters):
    batch = make_token_batch(two_groups(), OFF)
    change = abs(loss_of(batch, ratio, clip_high=0.28) - loss_of(batch, ratio))
    assert (change > 1e-3) == matters


def test_token_level_loss_alone_changes_the_weights_and_nothing_else():
    batch = make_token_batch(two_groups(), OFF)
    token = weights_of(batch, "token_mean")
    sequence = weights_of(batch, "sequence_mean")
    assert token.tolist() == pytest.approx([1 / 35] * 6)
    assert sequence.tolist() == pytest.approx([1 / (6 * n) for n in (2, 7, 10, 4, 3, 9)])
    by_token = loss_of(batch, 1.0, aggregation="token_mean")
    assert by_token != pytest.approx(loss_of(batch, 1.0), abs=1e-2)


def test_overlong_filtering_alone_changes_the_mask_and_nothing_else():
    off, on = (make_token_batch(two_groups(), shaping) for shaping in (OFF, FILTERING))
    assert differing_fields(off, on) == {"loss_mask"}
    assert np.flatnonzero(~on.loss_mask).tolist() == [2]


def test_the_soft_punishment_alone_changes_the_advantages_and_nothing_else():
    off, on = (make_token_batch(two_groups(), shaping) for shaping in (OFF, SOFT))
    assert differing_fields(off, on) == {"advantages"}
    assert not (off.advantages == on.advantages).any()


def test_the_soft_punishment_tells_equally_wrong_answers_apart_but_never_makes_a_signal():
    """Groups are filtered by the scores alone, before any shaping."""
    wrong = make_group(0, [-1.0, -1.0], lengths=[2, 9])
    assert length_penalties(wrong, SOFT).tolist() == [0.0, -0.75]
    assert classify(wrong) == "all_wrong"


def test_dynamic_sampling_alone_changes_which_groups_there_are_and_nothing_in_them():
    kept = two_groups()
    useless = make_group(2, [1.0, 1.0], lengths=[3, 3])

    def batch(enabled: bool) -> TokenBatch:
        sampler = DynamicSampler(3, max_problems=3, enabled=enabled, at_limit="train_on_partial")
        sampler.expect(group.ref for group in (*kept, useless))
        for group in (*kept, useless):
            sampler.add(group)
        return make_token_batch(sampler.result()[0], OFF)

    on, off = batch(True), batch(False)
    assert rows_of(on) == rows_of(off)[: len(on)]
    assert len(off) == len(on) + 2
    assert off.advantages[-2:].tolist() == [0.0, 0.0]
