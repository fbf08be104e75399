"""Turns scored groups into the batch that the learner trains on.

reward = score + Σ weight · component + Eq. 13     (soft overlong punishment, when on)
advantage = (reward - mean) / std over the group
loss mask: False for truncated completions   (overlong filtering, when on)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rllib_dapo.losses.advantages import group_advantages
from rllib_dapo.rewards.length import soft_overlong_punishment
from rllib_dapo.settings.choices import Baseline
from rllib_dapo.settings.general import DAPOSettings
from rllib_dapo.types import FloatArray, Group, IntArray, TokenBatch


@dataclass(frozen=True, slots=True)
class RewardShaping:
    """The choices for the punishment of length, the advantages and the loss mask.

    Attributes:
        max_length: L_max of Eq. 13, tokens.
        overlong_cache: L_cache of Eq. 13, tokens; None switches the punishment off.
        overlong_filtering: whether truncated completions are taken out of the loss.
        normalize_std: whether advantages are divided by the group's standard deviation.
        baseline: what the reward of a completion is compared with.
    """

    max_length: int
    overlong_cache: int | None
    overlong_filtering: bool
    normalize_std: bool
    baseline: Baseline = "group_mean"

    @classmethod
    def from_settings(cls, settings: DAPOSettings) -> RewardShaping:
        """Return the shaping that the settings of a run define."""
        soft = settings.soft_overlong_punishment
        return cls(
            max_length=settings.max_completion_length,
            overlong_cache=settings.soft_overlong_cache if soft else None,
            overlong_filtering=settings.overlong_filtering,
            normalize_std=settings.normalize_advantage_std,
            baseline=settings.advantage_baseline,
        )


def length_penalties(group: Group, shaping: RewardShaping) -> FloatArray:
    """float32[G], Eq. 13 of each completion; all 0 if the punishment is off."""
    lengths = np.array([len(c.token_ids) for c in group.completions], dtype=np.int64)
    if shaping.overlong_cache is None:
        return np.zeros(len(lengths), dtype=np.float32)
    penalties = soft_overlong_punishment(
        lengths, max_length=shaping.max_length, cache=shaping.overlong_cache
    )
    return np.asarray(penalties, dtype=np.float32)


def make_token_batch(groups: Sequence[Group], shaping: RewardShaping) -> TokenBatch:
    """Lay groups out as one flat batch, in their order.

    Truncated completions count in their group's mean and standard deviation even where
    overlong filtering takes them out of the loss: they are part of what the policy did.

    Args:
        groups: at least one, none failed.
        shaping: see `RewardShaping`.
    """
    completions = [c for group in groups for c in group.completions]
    prompts = [g.prompt.token_ids for g in groups for _ in g.completions]
    rewards = [group.rewards + length_penalties(group, shaping) for group in groups]
    advantages = [
        group_advantages(r, baseline=shaping.baseline, normalize_std=shaping.normalize_std)
        for r in rewards
    ]
    pieces = [
        part
        for prompt, c in zip(prompts, completions, strict=True)
        for part in (prompt, c.token_ids)
    ]
    sizes = [len(g.completions) for g in groups]
    truncated = np.array([c.truncated for c in completions], dtype=np.bool_)
    old_logprobs = np.concatenate([c.logprobs for c in completions], dtype=np.float32)
    return TokenBatch(
        token_ids=np.concatenate(pieces, dtype=np.int64),
        prompt_lengths=np.array([len(p) for p in prompts], dtype=np.int64),
        completion_lengths=np.array([len(c.token_ids) for c in completions], dtype=np.int64),
        old_logprobs=old_logprobs,
        advantages=np.concatenate(advantages).astype(np.float32),
        loss_mask=~truncated if shaping.overlong_filtering else np.ones_like(truncated),
        groups=np.repeat(np.arange(len(groups)), sizes),
        weights_versions=_token_versions(groups),
        # Broadcast views: no memory is allocated, which would be hundreds of megabytes.
        importance_weights=np.broadcast_to(np.float32(1.0), old_logprobs.shape),
        reference_logprobs=np.broadcast_to(np.float32(0.0), old_logprobs.shape),
    )


def _token_versions(groups: Sequence[Group]) -> IntArray:
    """int64[T], the version of the policy that sampled each completion token."""
    versions, lengths = [], []
    for group in groups:
        for c in group.completions:
            starts = c.versions or ((0, group.weights_version),)
            ends = [*(start for start, _ in starts[1:]), len(c.token_ids)]
            for (start, version), end in zip(starts, ends, strict=True):
                versions.append(version)
                lengths.append(end - start)
    if len(set(versions)) == 1:
        return np.broadcast_to(np.int64(versions[0]), sum(lengths))
    return np.repeat(np.array(versions, np.int64), np.array(lengths, np.int64))
