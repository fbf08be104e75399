"""The types in which data pass from one stage to the next.

    ProblemRef -> Prompt -> Completion -> Group -> TokenBatch

A reference to a problem becomes a prompt (token ids). The engine samples G completions of it,
and the environment scores each of them. The G scored completions are a group. The groups that
carry a signal become one flat batch of tokens for the learner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

CAUSAL_LM_PREFIX = "causal_lm."
"""The prefix of the language model's parameters in the RLModule's state. The engine's names do not
have it."""

VersionStarts = tuple[tuple[int, int], ...]
"""Which weights sampled which tokens of a completion. Each stretch of tokens is given by the
position of its first token and the version of the weights, in order: with `((0, 3), (57, 4))`,
version 3 sampled tokens 0 to 56, and version 4 the rest."""

FinishReason = Literal["stop", "length", "abort"]
"""Why a completion ended: `stop` (an EOS or another stop was sampled), `length` (it was truncated
at the limit) or `abort` (the sampler withdrew it; it is never trained on)."""


@dataclass(frozen=True, slots=True)
class ProblemRef:
    """Which problem to pose: the arguments of `env.reset(seed=…, options={"index": …, …})`.

    Attributes:
        position: the position in the run's problem stream, 0, 1, 2, …. It is unique within a
            run, so that two problems with the same text stay two groups.
        index: the environment's own number for the problem.
        seed: the seed of the reset.
        evaluation: True poses the problem in the evaluation environment, whose positions
            begin at 0 again.

    Example: `ProblemRef(position=70, index=12, seed=9137)`.
    """

    position: int
    index: int
    seed: int
    evaluation: bool = False

    @property
    def options(self) -> dict[str, int]:
        """The options of `env.reset`: the problem, and its position for curricula.

        In an evaluation, `evaluation` is 1: its positions say nothing about the run's progress.
        """
        options = {"index": self.index, "position": self.position}
        return options | {"evaluation": 1} if self.evaluation else options


@dataclass(frozen=True, slots=True)
class Prompt:
    """A problem as the model sees it.

    Attributes:
        token_ids: int64[P], the ids that the engine reads, special tokens included.
        text: the prompt as text for people to read; it is never tokenised again.

    Example: `Prompt(np.array([1, 5, 9]), "1+2=?")`.
    """

    token_ids: IntArray
    text: str


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled and scored completion.

    Attributes:
        token_ids: int64[T], the sampled ids, including what ended the completion.
        logprobs: float32[T], the log-probability (nats) of each sampled token under the
            distribution from which it was sampled (after temperature).
        text: the decoded completion that the environment scored.
        finish_reason: see `FinishReason`.
        score: the environment's reward, before any shaping.
        correct: the environment's verdict (`info["correct"]`, else `score > 0`).
        info: the other entries of the environment's `info`, plain values only.
        components: the other components of the reward by name, before their weights: `format`
            and the user's reward functions. Eq. 13 is not among them; it is added later.
        extra_reward: the weighted sum of `components`.
        reflections: the number of phrases of checking, reflecting or backtracking
            (`rewards.reflection`).
        versions: which weights sampled which tokens. Empty means that the group's version
            sampled all of them.

    Example: T=3, `Completion([7, 8, 2], [-0.1, -0.7, 0.0], "42", "stop", 1.0, True)`.
    """

    token_ids: IntArray
    logprobs: FloatArray
    text: str
    finish_reason: FinishReason
    score: float
    correct: bool
    info: dict[str, Any] = field(default_factory=dict)
    components: dict[str, float] = field(default_factory=dict)
    extra_reward: float = 0.0
    reflections: int = 0
    versions: VersionStarts = ()

    @property
    def truncated(self) -> bool:
        """True if the completion was cut at the length limit instead of ending by itself."""
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class Group:
    """The G completions of one problem.

    Attributes:
        ref: the problem.
        prompt: its prompt.
        completions: the G completions, in sampling order.
        weights_version: the version of the policy that sampled them (0 = initial weights). It
            is the oldest one if the weights changed meanwhile (`Completion.versions`).
        failure: why this group could not be scored, or None. A failed group is dropped and
            counted.
        reward_failures: the number of completions that got no value from a reward function, by
            reason.
    """

    ref: ProblemRef
    prompt: Prompt
    completions: tuple[Completion, ...]
    weights_version: int
    failure: str | None = None
    reward_failures: dict[str, int] = field(default_factory=dict)

    @property
    def scores(self) -> npt.NDArray[np.float64]:
        """float64[G], the environment's rewards before shaping."""
        return np.array([c.score for c in self.completions], dtype=np.float64)

    @property
    def rewards(self) -> npt.NDArray[np.float64]:
        """float64[G], the rewards with all components except Eq. 13."""
        extra = np.array([c.extra_reward for c in self.completions], dtype=np.float64)
        return self.scores + extra


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """A batch that the learner trains on: B sequences laid end to end, without padding.

    Sequence i is a prompt of `prompt_lengths[i]` tokens followed by a completion of
    `completion_lengths[i]` tokens. Per-completion arrays hold the completions end to end.

    Attributes:
        token_ids: int64[sum(prompt_lengths + completion_lengths)].
        prompt_lengths: int64[B], tokens.
        completion_lengths: int64[B], tokens; 0 is allowed.
        old_logprobs: float32[sum(completion_lengths)], log π_old of each completion token: the
            engine's, until the learner replaces it by its own (`old_logprobs: learner`).
        advantages: float32[B], one per sequence (the same for each of its tokens).
        loss_mask: bool[B], False takes a whole completion out of numerator and
            denominator (overlong filtering).
        groups: int64[B], the group (0 … N-1) to which a sequence belongs.
        weights_versions: int64[sum(completion_lengths)], the version of the policy that sampled
            each completion token.
        importance_weights: float32[sum(completion_lengths)], the factor of each token's
            objective; 1 unless the learner corrects for the engine's arithmetic. 0 takes
            the token out of numerator and denominator.
        reference_logprobs: float32[sum(completion_lengths)], log π_ref of each completion token;
            0 unless the learner compares with a reference policy.

    Example: two completions, [5, 2] and [6], of the prompt [1, 4]:
        token_ids [1,4,5,2, 1,4,6], prompt_lengths [2,2], completion_lengths [2,1],
        old_logprobs [-.1,-.2, -.9], advantages [1,-1], loss_mask [T,T], groups [0,0],
        weights_versions [3,3, 3], importance_weights [1,1, 1], reference_logprobs [0,0, 0].
    """

    token_ids: IntArray
    prompt_lengths: IntArray
    completion_lengths: IntArray
    old_logprobs: FloatArray
    advantages: FloatArray
    loss_mask: BoolArray
    groups: IntArray
    weights_versions: IntArray
    importance_weights: FloatArray
    reference_logprobs: FloatArray

    def __len__(self) -> int:
        """The number of sequences, B."""
        return len(self.prompt_lengths)

    @property
    def lengths(self) -> IntArray:
        """int64[B], the prompt and completion tokens of each sequence together."""
        return self.prompt_lengths + self.completion_lengths

    @property
    def sequence_ids(self) -> IntArray:
        """int64[sum(completion_lengths)], the sequence (0 … B-1) of each completion token."""
        return np.repeat(np.arange(len(self)), self.completion_lengths)
