"""The words that a setting with a fixed set of values can take."""

from __future__ import annotations

from typing import Literal

AtLimit = Literal["error", "train_on_partial", "skip"]
"""What happens when a batch is not full and no more problems may be requested."""

Aggregation = Literal["token_mean", "sequence_mean", "constant", "group_token_mean"]
"""How the losses of the tokens are averaged: every token weighs the same (DAPO), every
completion does (GRPO), the divisor is a constant (Dr. GRPO), or every group does."""

RatioLevel = Literal["token", "sequence"]
"""Whether each token has its own importance ratio (PPO) or each completion has one (GSPO)."""

KLEstimator = Literal["k1", "k2", "k3"]
"""Schulman's three estimators of the KL divergence from samples of the policy."""

OldLogprobs = Literal["engine", "learner"]
"""Whether the engine or the learner computes the old log-probabilities of the ratio."""

Baseline = Literal["group_mean", "leave_one_out"]
"""Whether a reward is compared with the mean of all G rewards or of the G - 1 others."""

ImportanceSampling = Literal["none", "token", "sequence"]
"""Whether importance weights correct for the engine's arithmetic, and of what they are ratios."""

RewardFailure = Literal["error", "drop_group", "zero"]
"""What becomes of a group in which a reward function gave no value for a completion."""

ComputeDtype = Literal["float32", "bfloat16"]
"""The number format of the learner's forward and backward pass."""

EngineDtype = Literal["auto", "float32", "float", "bfloat16", "float16", "half"]
"""The number format of the inference engine, in vLLM's words."""

LearningRateSchedule = Literal["constant", "cosine"]
"""What the learning rate does after its warm-up."""

UnfinishedGroups = Literal["finish", "abort", "continue"]
"""What becomes of the groups that are in flight when a batch is full."""

WeightSyncChoice = Literal["auto", "object_store", "cuda_ipc", "nccl"]
"""How weights get from the learner into the engines."""

ChatMode = Literal["auto", "always", "never"]
"""Whether prompts go through the tokenizer's chat template."""

ProgressMode = Literal["auto", "on", "off"]
"""Whether the progress of an iteration is shown."""
