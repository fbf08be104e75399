"""Compute the reward of a completion as a weighted sum of components.

    reward = score + format_reward · format + Σ weight · value     (Eq. 13 is added later)

The environment gives `score`. `format` is 1 for a completion that ended by itself and in which
the environment found a final answer, and 0 for any other. The user's functions give the values.

Dynamic sampling looks at the score alone (`rollout.group_filter.classify`): a group whose
completions are all correct or all wrong is dropped even if other components differ (Eq. 11).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rllib_dapo.errors import RewardError
from rllib_dapo.rewards.calls import CompletionsToScore, NoValue, RewardCalls
from rllib_dapo.rewards.columns import AskedColumn
from rllib_dapo.rewards.functions import (
    FORMAT,
    RewardFunction,
    load_reward_functions,
    reward_function_names,
)
from rllib_dapo.settings.checks import check_value
from rllib_dapo.settings.choices import RewardFailure
from rllib_dapo.settings.general import DAPOSettings
from rllib_dapo.types import Completion


@dataclass(frozen=True, slots=True)
class PlayedCompletion:
    """One completion as the environment has scored it.

    Attributes:
        problem: the observation that `reset` returned.
        completion: the completion, with the environment's score.
        info: the whole `info` that `step` returned.
        columns: further values of the problem's row, for reward functions that ask for them.
    """

    problem: str
    completion: Completion
    info: Mapping[str, Any]
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ComposedGroup:
    """The completions of a group with all components of their rewards.

    Attributes:
        completions: the completions, each with its components.
        failures: how many completions got no value from a function, by reason.
        failure: why the group is to be dropped, or None.
    """

    completions: tuple[Completion, ...]
    failures: dict[str, int]
    failure: str | None


class RewardComposer:
    """Adds the other components of the reward to the environment's score.

    Args:
        functions: the user's reward functions.
        format_reward: the weight of the format component; 0 leaves the component out.
        on_failure: `error` raises, `drop_group` fails the group, `zero` counts a missing
            value as 0.
        timeout_s: how long one function may take for one group, in seconds.
        calls: calls the functions; it may be shared by composers that one thread at a time uses.
    """

    def __init__(
        self,
        functions: Sequence[RewardFunction] = (),
        *,
        format_reward: float = 0.0,
        on_failure: RewardFailure = "drop_group",
        timeout_s: float = 60.0,
        calls: RewardCalls | None = None,
    ) -> None:
        self._functions = tuple(functions)
        self._format_reward = format_reward
        self._on_failure = on_failure
        self._timeout_s = timeout_s
        self._calls = calls or RewardCalls()

    @classmethod
    def from_settings(
        cls, settings: DAPOSettings, calls: RewardCalls | None = None
    ) -> RewardComposer:
        """Make a composer with the functions and limits of the settings.

        Raises:
            SettingError: a function cannot be used; see `load_reward_functions`.
        """
        return cls(
            load_reward_functions(settings.reward_functions),
            format_reward=settings.format_reward,
            on_failure=settings.reward_failure,
            timeout_s=settings.reward_timeout_s,
            calls=calls,
        )

    def compose(self, played: Sequence[PlayedCompletion]) -> ComposedGroup:
        """Compute the components of one group's completions.

        Raises:
            RewardError: a function failed and `on_failure` is `error`, or too many calls hang.
        """
        completions = tuple(p.completion for p in played)
        components: list[dict[str, float]] = [{} for _ in played]
        terms: list[list[float]] = [[] for _ in played]
        if self._format_reward:
            for i, p in enumerate(played):
                components[i][FORMAT] = keeps_format(p)
                terms[i].append(self._format_reward * components[i][FORMAT])
        reasons: Counter[str] = Counter()
        first_failure: str | None = None
        group = _to_score(played)
        for function in self._functions if played else ():
            if first_failure is not None and self._on_failure != "zero":
                break  # The group is lost, so further calls would be wasted.
            for i, outcome in enumerate(self._calls.call(function, group, self._timeout_s)):
                value = outcome
                if isinstance(value, NoValue):
                    reasons[value.reason] += 1
                    first_failure = first_failure or f"reward function `{function.name}` " + (
                        value.message
                    )
                    value = 0.0
                components[i][function.name] = value
                terms[i].append(function.weight * value)
        if first_failure is not None and self._on_failure == "error":
            raise RewardError(
                f"{first_failure}. Correct it, or set reward_failure to 'drop_group' or 'zero'"
            )
        composed = tuple(
            replace(c, components=components[i], extra_reward=math.fsum(terms[i]))
            for i, c in enumerate(completions)
        )
        dropped = first_failure if self._on_failure == "drop_group" else None
        return ComposedGroup(composed, dict(reasons), dropped)

    def close(self) -> None:
        """End the thread in which coroutines run."""
        self._calls.close()


def keeps_format(played: PlayedCompletion) -> float:
    """Return 1 if the completion ended by itself and a final answer was found in it, else 0.

    The entry `matched_by` or `extracted` of the environment's info tells whether there is a final
    answer. If the info has neither, only the ending counts.
    """
    info = played.info
    found = info["matched_by"] != "no_answer" if "matched_by" in info else True
    if "extracted" in info:
        found = found and info["extracted"] is not None
    return float(found and played.completion.finish_reason == "stop")


def component_names(settings: DAPOSettings) -> tuple[str, ...]:
    """Return the names of the components that a completion has beside the score."""
    own = (FORMAT,) if settings.format_reward else ()
    return own + reward_function_names(settings.reward_functions)


def check_rewards(settings: DAPOSettings) -> None:
    """Check the settings of the reward, and import its functions.

    Raises:
        SettingError: a setting is impossible; the message names it, its value and the remedy.
    """
    check_value("format_reward", settings.format_reward)
    check_value("reward_timeout_s", settings.reward_timeout_s)
    load_reward_functions(settings.reward_functions)


def columns_of_rewards(settings: DAPOSettings) -> tuple[AskedColumn, ...]:
    """The columns of the data set that the reward functions of the settings ask for.

    Raises:
        SettingError: a function cannot be used; see `load_reward_functions`.
    """
    functions = load_reward_functions(settings.reward_functions)
    return tuple(column for function in functions for column in function.columns)


def _to_score(played: Sequence[PlayedCompletion]) -> CompletionsToScore:
    return CompletionsToScore(
        problem=played[0].problem if played else "",
        answers=[p.completion.text for p in played],
        infos=[p.info for p in played],
        truncated=[p.completion.truncated for p in played],
        num_tokens=[len(p.completion.token_ids) for p in played],
        columns=played[0].columns if played else {},
    )
