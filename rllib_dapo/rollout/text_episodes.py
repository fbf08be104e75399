"""Posing problems and scoring answers: what an engine says, played in a text environment.

Each answer is an episode of one step from the same reset as its group's others. The sampled
token ids are kept; text is made for scoring only and never tokenised again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rllib_dapo.data.prompts import PromptRenderer
from rllib_dapo.rewards.composition import PlayedAnswer, RewardComposer
from rllib_dapo.rewards.reflection import count_reflections
from rllib_dapo.rollout.engine.base import SampledCompletion
from rllib_dapo.types import Completion, Group, ProblemRef, Prompt

_NO_PROMPT = Prompt(token_ids=np.zeros(0, dtype=np.int64), text="")


class TextEpisodes:
    """Episodes in a runner's environments.

    Problems may be posed in one thread while answers are scored in another.

    Args:
        environment: the environment in which a problem is posed.
        renderer: makes prompts of what it poses.
        tokenizer: makes texts of answers.
        rewards: the user's reward functions; None: there are none.
    """

    def __init__(
        self,
        environment: Callable[[ProblemRef], Any],
        renderer: PromptRenderer,
        tokenizer: Any,
        rewards: RewardComposer | None,
    ) -> None:
        self._environment = environment
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._rewards = rewards
        self._lock = threading.Lock()  # environments are used by one thread at a time

    def pose(self, ref: ProblemRef) -> Prompt:
        """The prompt of a problem.

        Raises:
            PromptTooLong: it does not fit.
            Exception: whatever the environment raises.
        """
        with self._lock:
            observation, info = self._environment(ref).reset(seed=ref.seed, options=ref.options)
        return self._renderer.render(info.get("messages", observation))

    def group(
        self, ref: ProblemRef, prompt: Prompt, answers: Sequence[SampledCompletion], version: int
    ) -> Group:
        """Score all answers to a problem: the environment first, then the reward functions.

        Evaluation counts right answers only, so the functions are not called there. What the
        environment raises makes a failed group.

        Args:
            ref: the problem.
            prompt: its prompt.
            answers: what the engine sampled.
            version: of the weights, where an answer does not say it.

        Raises:
            RewardError: a function failed and `reward_failure` is `error`, or too many hang.
        """
        try:
            played = [self._play(ref, answer) for answer in answers]
        except Exception as error:  # noqa: BLE001 - a foreign environment may raise anything
            return failed_group(ref, error, version, prompt)
        oldest = min((a.versions[0][1] for a in answers if a.versions), default=version)
        if self._rewards is None or ref.evaluation:
            return Group(ref, prompt, tuple(p.completion for p in played), oldest)
        composed = self._rewards.compose(played)
        completions = () if composed.failure is not None else composed.completions
        return Group(ref, prompt, completions, oldest, composed.failure, composed.failures)

    def _play(self, ref: ProblemRef, answer: SampledCompletion) -> PlayedAnswer:
        """One episode: the same reset, one step with the answer's text."""
        text = self._tokenizer.decode(answer.token_ids, skip_special_tokens=True)
        env = self._environment(ref)
        with self._lock:
            problem, _ = env.reset(seed=ref.seed, options=ref.options)
            _, reward, _, _, info = env.step(text)
        score = float("nan") if reward is None else float(reward)
        completion = Completion(
            token_ids=answer.token_ids,
            logprobs=answer.logprobs,
            text=text,
            finish_reason=answer.finish_reason,
            score=score,
            correct=bool(info.get("correct", score > 0)),
            info={k: v for k, v in info.items() if isinstance(v, (str, int, float, bool))},
            reflections=count_reflections(text),
            versions=answer.versions,
        )
        return PlayedAnswer(str(problem), completion, info)


def failed_group(
    ref: ProblemRef, reason: BaseException | str, version: int, prompt: Prompt = _NO_PROMPT
) -> Group:
    """The group of a problem that could not be posed, answered or scored."""
    text = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
    return Group(ref, prompt, (), version, failure=text)
