"""The types of settings: words to choose from, common bounds, and remedies.

A setting is a field with a type, bounds (those of `annotated_types`) and a remedy:

    clip_low: Annotated[float, Gt(0), Lt(1), Remedy("use a number between 0 and 1")] = 0.2

`settings.checks` refuses every value that does not fit, and names the remedy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import AllowInfNan

AtLimit = Literal["error", "train_on_partial", "skip"]
"""What happens when a batch is not full and no more problems may be requested."""

Aggregation = Literal["token_mean", "sequence_mean", "constant", "group_token_mean"]
"""How the losses of the tokens are averaged: every token weighs the same (DAPO), every
completion does (GRPO), the divisor is a constant (Dr. GRPO), or every group does."""

MinibatchUnit = Literal["completion", "group"]
"""What minibatches are drawn by: single completions, or whole groups."""

RatioLevel = Literal["token", "sequence"]
"""Whether each token has its own importance ratio (PPO) or each completion has one (GSPO)."""

KLEstimator = Literal["k1", "k2", "k3"]
"""Schulman's three estimators of the KL divergence from samples of the policy."""

OldLogprobs = Literal["engine", "learner"]
"""Whether the engine or the learner computes the old log-probabilities of the ratio."""

Baseline = Literal["group_mean", "leave_one_out"]
"""Whether a reward is compared with the mean of all G rewards or of the G - 1 others."""

ImportanceSampling = Literal["none", "token", "sequence"]
"""Whether importance weights correct for the engine's arithmetic, per token or per completion."""

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
"""How the weights travel from the learner to the engines."""

ChatMode = Literal["auto", "always", "never"]
"""Whether prompts go through the tokenizer's chat template."""

ProgressMode = Literal["auto", "on", "off"]
"""Whether the progress of an iteration is shown."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """What a user should write instead of a value that is refused.

    Attributes:
        text: one phrase in the imperative. `{settings.NAME}` stands for the value of another
            setting.
    """

    text: str


FINITE = AllowInfNan(False)
"""Neither infinite nor NaN. The bounds alone refuse NaN, but let infinity pass."""

Count = Annotated[int, Ge(1), Remedy("use 1 or more")]
Tokens = Annotated[int, Ge(1), Remedy("use 1 token or more")]
Threads = Annotated[int | None, Ge(1), Remedy("use 1 or more, or null for what the process has")]
Processors = Annotated[float, Ge(0), Remedy("use 0 or more; fractions such as 0.5 are fine")]
