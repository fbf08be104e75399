"""What a setting that is one of a few words can be."""

from __future__ import annotations

from typing import Literal

AtLimit = Literal["error", "train_on_partial", "skip"]
"""What happens when no more problems may be asked for and the batch is not full."""

Aggregation = Literal["token_mean", "sequence_mean", "constant", "group_token_mean"]
"""How tokens are averaged: alike (DAPO), per sequence (GRPO), by L_max (Dr. GRPO), per group."""

RatioLevel = Literal["token", "sequence"]
"""Whether each token has its own importance ratio (PPO) or its whole sequence one (GSPO)."""

KLEstimator = Literal["k1", "k2", "k3"]
"""Schulman's estimators of the KL divergence from samples of the policy."""

OldLogprobs = Literal["engine", "learner"]
"""Whose log-probabilities the ratio compares with."""

Baseline = Literal["group_mean", "leave_one_out"]
"""What an answer is compared with: all G answers, or only the G - 1 others."""

ImportanceSampling = Literal["none", "token", "sequence"]
"""Whether, and how, what the engine sampled is weighed to count as the learner's."""

RewardFailure = Literal["error", "drop_group", "zero"]
"""What becomes of a group in which a reward function gave no value for an answer."""

ComputeDtype = Literal["float32", "bfloat16"]

LearningRateSchedule = Literal["constant", "cosine"]
"""What the learning rate does after its warm-up."""

UnfinishedGroups = Literal["finish", "abort", "continue"]
"""What becomes of problems still being answered when a batch is full."""

WeightSyncChoice = Literal["auto", "object_store", "cuda_ipc", "nccl"]
"""How weights get from the learner into the engines."""

ChatMode = Literal["auto", "always", "never"]
ProgressMode = Literal["auto", "on", "off"]
