"""Posing problems and scoring completions in a text environment.

Each completion is an episode of one step; all episodes of a group start from the same reset. The
sampled token ids are kept. Text is decoded for scoring only and never tokenised again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_dapo.data.prompts import PromptRenderer
from rllib_dapo.data.stops import Stops
from rllib_dapo.envs.make import make_env
from rllib_dapo.rewards.columns import asked_columns
from rllib_dapo.rewards.composition import (
    PlayedCompletion,
    RewardComposer,
    columns_of_rewards,
)
from rllib_dapo.rewards.reflection import count_reflections
from rllib_dapo.rollout.engine.base import SampledCompletion
from rllib_dapo.rollout.single_step import MultiTurnError, require_end
from rllib_dapo.settings.run import RunSettings
from rllib_dapo.types import Completion, Group, ProblemRef, Prompt

Scored = tuple[float | None, Mapping[str, Any]]
"""What `step` returns for a completion: its score and its info."""
Posed = tuple[Any, Mapping[str, Any]]
"""What `reset` returns: the problem and its info. Its entry `columns` holds the values of the
problem's row that reward functions may ask for."""

_NO_PROMPT = Prompt(token_ids=np.zeros(0, dtype=np.int64), text="")


class TextEpisodes:
    """Episodes in a runner's environments.

    Any number of threads may pose problems and score groups. If the environment offers
    `score_group`, a group is scored in one call, in an instance that no other thread uses
    meanwhile, so that neither posing nor other groups wait for it. Other environments play one
    completion after the other and are used by one thread at a time.

    Args:
        environment: returns the environment in which a problem is posed.
        another: makes another instance of that environment.
        renderers: turn what the environment poses into a prompt, in training and in evaluation.
        tokenizer: decodes completions.
        stops: say which part of a completion is its text.
        rewards: compose the reward with the user's reward functions, in training and in
            evaluation; if there are none, the environment's score is the reward.
    """

    def __init__(
        self,
        environment: Callable[[ProblemRef], Any],
        another: Callable[[ProblemRef], Any],
        renderers: Sequence[PromptRenderer],
        tokenizer: Any,
        stops: Stops,
        rewards: Sequence[RewardComposer],
    ) -> None:
        self._environment = environment
        self._another = another
        self._spare: dict[bool, list[Any]] = {False: [], True: []}  # by `ref.evaluation`
        self._renderers = renderers
        self._tokenizer = tokenizer
        self._stops = stops
        self._rewards = rewards
        self._lock = threading.Lock()  # one thread at a time uses `environment`
        self._rewards_lock = threading.Lock()  # one thread at a time calls the reward functions

    def pose(self, ref: ProblemRef) -> Prompt:
        """Pose a problem and return its prompt.

        Raises:
            PromptTooLong: the prompt is longer than `max_prompt_length`.
            Exception: whatever the environment raises.
        """
        with self._lock:
            observation, info = self._environment(ref).reset(seed=ref.seed, options=ref.options)
        return self._renderers[ref.evaluation].render(info.get("messages", observation))

    def group(
        self, ref: ProblemRef, prompt: Prompt, sampled: Sequence[SampledCompletion], version: int
    ) -> Group:
        """Score all completions of a problem: the environment first, then the reward functions.

        If the environment raises, the group has failed. In evaluation, which counts correct
        completions, the functions' values are only reported: where they fail a group, it stays
        and has none.

        Args:
            ref: the problem.
            prompt: its prompt.
            sampled: the completions from the engine.
            version: the version of the weights, for completions that do not name theirs.

        Raises:
            RewardError: a function failed and `reward_failure` is `error`, or too many hang.
            MultiTurnError: the environment goes on after its first step.
        """
        try:
            played = self._play(ref, sampled)
        except MultiTurnError:  # no other problem would do better
            raise
        except Exception as error:  # noqa: BLE001 - a foreign environment may raise anything
            return failed_group(ref, error, version, prompt)
        oldest = min((c.versions[0][1] for c in sampled if c.versions), default=version)
        plain = tuple(p.completion for p in played)
        if not self._rewards:
            return Group(ref, prompt, plain, oldest)
        with self._rewards_lock:
            composed = self._rewards[ref.evaluation].compose(played)
        if ref.evaluation and composed.failure is not None:
            return Group(ref, prompt, plain, oldest, reward_failures=composed.failures)
        completions = () if composed.failure is not None else composed.completions
        return Group(ref, prompt, completions, oldest, composed.failure, composed.failures)

    def close(self) -> None:
        """Close the instances that were made for scoring."""
        for spare in self._spare.values():
            while spare:
                spare.pop().close()

    def _play(
        self, ref: ProblemRef, sampled: Sequence[SampledCompletion]
    ) -> list[PlayedCompletion]:
        """One episode for each completion, all from the same reset."""
        texts = [self._stops.text(self._tokenizer, c.token_ids) for c in sampled]
        if find_score_group(self._environment(ref)) is None:
            scored = [self._step(ref, text) for text in texts]
        else:
            scored = self._score_together(ref, texts)
        return [
            _played(posed, one, text, score, info)
            for one, text, (posed, (score, info)) in zip(sampled, texts, scored, strict=True)
        ]

    def _step(self, ref: ProblemRef, text: str) -> tuple[Posed, Scored]:
        """The problem, and what `step` says of one completion."""
        env = self._environment(ref)
        with self._lock:
            posed = env.reset(seed=ref.seed, options=ref.options)
            _, score, terminated, truncated, info = env.step(text)
        require_end(env, terminated, truncated)
        return posed, (score, info)

    def _score_together(self, ref: ProblemRef, texts: list[str]) -> list[tuple[Posed, Scored]]:
        """The problem, and what `score_group` says of each completion."""
        with self._instance(ref) as env:
            posed = env.reset(seed=ref.seed, options=ref.options)
            scored = find_score_group(env)(texts)  # type: ignore[misc]
        if len(scored) != len(texts):
            raise ValueError(f"score_group gave {len(scored)} scores for {len(texts)} completions")
        return [(posed, one) for one in scored]

    @contextmanager
    def _instance(self, ref: ProblemRef) -> Iterator[Any]:
        """An environment that no other thread uses meanwhile; made where none is free."""
        spare = self._spare[ref.evaluation]
        try:
            env = spare.pop()
        except IndexError:
            env = self._another(ref)
        try:
            yield env
        finally:
            spare.append(env)


def make_env_of(settings: RunSettings) -> Any:
    """Make the environment of settings, which offers the columns that reward functions ask for.

    Raises:
        SettingError: there is no such environment, or it does not accept its `env_config`.
        DataError: its data cannot be used.
    """
    asked = asked_columns(columns_of_rewards(settings))
    return make_env(settings.env, settings.env_config, columns=asked)


def find_score_group(env: Any) -> Callable[[Sequence[str]], Sequence[Scored]] | None:
    """The method `score_group` of an environment, or None if it has none.

    It is looked for below gymnasium's own checking wrappers only: another wrapper may change
    what `step` gives, so it has to offer the method itself.
    """
    while isinstance(env, OrderEnforcing | PassiveEnvChecker):
        env = env.env
    return getattr(env, "score_group", None)


def _played(
    posed: Posed,
    sampled: SampledCompletion,
    text: str,
    score: float | None,
    info: Mapping[str, Any],
) -> PlayedCompletion:
    number = float("nan") if score is None else float(score)
    completion = Completion(
        token_ids=sampled.token_ids,
        logprobs=sampled.logprobs,
        text=text,
        finish_reason=sampled.finish_reason,
        score=number,
        correct=bool(info.get("correct", number > 0)),
        info={k: v for k, v in info.items() if v is None or isinstance(v, str | int | float)},
        reflections=count_reflections(text),
        versions=sampled.versions,
    )
    problem, opening = posed
    return PlayedCompletion(str(problem), completion, info, opening.get("columns", {}))


def failed_group(
    ref: ProblemRef, reason: BaseException | str, version: int, prompt: Prompt = _NO_PROMPT
) -> Group:
    """Return the group of a problem that could not be posed, sampled or scored."""
    text = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
    return Group(ref, prompt, (), version, failure=text)


def as_episodes(group: Group) -> list[SingleAgentEpisode]:
    """The group as RLlib episodes, one per completion, with token ids as extra outputs."""
    return [_episode(group, completion) for completion in group.completions]


def _episode(group: Group, completion: Completion) -> SingleAgentEpisode:
    return SingleAgentEpisode(
        observations=[group.prompt.text, ""],
        actions=[completion.text],
        rewards=[completion.score + completion.extra_reward],
        infos=[{}, completion.info],
        terminated=not completion.truncated,
        truncated=completion.truncated,
        extra_model_outputs={
            "token_ids": [completion.token_ids],
            "action_logp": [completion.logprobs],
        },
        len_lookback_buffer=0,
    )
