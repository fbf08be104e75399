"""Pose problems of reasoning-gym, which are endless, have exact answers and are graded here.

reasoning-gym's own scorers are never called: some run the answer as code, and the common one
rewards answers that merely contain the correct one. In reasoning-gym, item i of seed s is item
i-1 of seed s+1, so every problem here has a seed of its own, 4,096 apart from the next.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import gymnasium as gym

from rllib_dapo.envs.arithmetic import Split, split_of
from rllib_dapo.envs.curriculum import level_at, read_levels
from rllib_dapo.envs.reasoning_gym_tasks import TASKS, check_task
from rllib_dapo.envs.spaces import UnicodeText
from rllib_dapo.errors import DataError, SettingError
from rllib_dapo.rewards.grading.grade import grade_robust, parse_gold

SEEDS_PER_PROBLEM = 4096
"""The distance between the seeds of neighbouring problems, and the most draws for one problem."""
_OURS = ("seed", "size")


class ReasoningGymEnv(gym.Env[str, str]):
    """One problem per episode; the action is the whole completion as text.

    `reset(options={"index": i})` poses problem i, which depends on i, the settings and the level
    only. Without an index, one is drawn from the environment's own generator. The level is that
    of `options["position"]`, the problem's place in the run; without a position, i is used. With
    `options["evaluation"]`, problem i is of level i modulo the number of levels, so that an
    evaluation has as much of each level, whatever level the training has reached.
    `step(text)` ends the episode with +1 if the robust grader finds the correct answer and -1
    otherwise; its info holds `correct`, `extracted`, `expected` and `matched_by`.

    Args:
        task: a task of reasoning-gym with one exact answer, such as `chain_sum`.
        task_config: the settings of the task, such as `{"max_terms": 4}`.
        split: `train`, or `validation`: one question in ten, by a hash of its text.
        curriculum: the levels in their order, each with `until` (the first position of the
            next level) and `task_config` (the settings of the task that the level changes).

    Raises:
        SettingError: reasoning-gym is not installed, or an argument is impossible.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium's own form
    num_problems: int | None = None  # endless

    def __init__(
        self,
        *,
        task: str,
        task_config: Mapping[str, Any] | None = None,
        split: Split = "train",
        curriculum: Sequence[Mapping[str, Any]] = (),
        render_mode: str | None = None,
    ) -> None:
        if split not in get_args(Split):
            raise SettingError(
                f"env_config.split={split!r}: use 'train' or 'validation'", "env_config.split"
            )
        self.task = check_task(task)
        self.split: Split = split
        self.levels = read_levels(curriculum)
        configs = [{**(task_config or {}), **level.task_config} for level in self.levels]
        self._make = [_Generator(task, config) for config in configs]
        self.render_mode = render_mode
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self._answer: str | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Pose a problem; the observation is its text.

        Raises:
            DataError: the index is negative, or the task has no question for it in this split.
        """
        super().reset(seed=seed)
        options = options or {}
        index = options.get("index")
        if index is None:
            index = self.np_random.integers(0, 2**31)
        index = int(index)
        if index < 0:
            raise DataError(f'options["index"]={index}: problems are numbered from 0')
        level = level_at(self.levels, int(options.get("position", index)))
        if options.get("evaluation"):
            level = index % len(self.levels)
        question, self._answer = self._problem(index, level)
        return question, {"index": index, "level": level}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Grade a completion and end the episode."""
        ((score, info),) = self.score_group([action])
        return "", score, True, False, info

    def score_group(self, completions: Sequence[str]) -> list[tuple[float, dict[str, Any]]]:
        """Grade all completions of the problem; return for each the score and info of `step`."""
        if self._answer is None:
            raise RuntimeError("ReasoningGymEnv.step was called before reset: call reset() first")
        gold = parse_gold(self._answer)
        scored: list[tuple[float, dict[str, Any]]] = []
        for completion in completions:
            verdict = grade_robust(str(completion), gold)
            info = {
                "correct": verdict.correct,
                "extracted": verdict.extracted,
                "expected": self._answer,
                "matched_by": verdict.matched_by,
            }
            scored.append((1.0 if verdict.correct else -1.0, info))
        return scored

    def _problem(self, index: int, level: int) -> tuple[str, str]:
        """Return question and answer of the first draw that is exact and belongs to this split."""
        for attempt in range(SEEDS_PER_PROBLEM):
            entry = self._make[level].draw(index * SEEDS_PER_PROBLEM + attempt)
            if entry is None or not TASKS[self.task](entry):
                continue
            question = str(entry["question"]).strip()
            if split_of(question) == self.split:
                return question, str(entry["answer"])
        raise DataError(
            f"env_config.task={self.task!r}: {SEEDS_PER_PROBLEM} draws gave no question of"
            f" split={self.split!r}: these settings have too few questions; widen task_config"
        )


class _Generator:
    """Draws the questions of one task at one level.

    Args:
        task: the name of the task.
        config: the settings of the task, without `seed` and `size`.
    """

    def __init__(self, task: str, config: Mapping[str, Any]) -> None:
        self._dataset, self._config = _classes(task)
        self._settings = dict(config)
        known = [f.name for f in dataclasses.fields(self._config) if f.name not in _OURS]
        for key in config:
            name = f"env_config.task_config.{key}"
            if key in _OURS:
                raise SettingError(f"{name}: the environment sets it; leave it out", name)
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.4)
                hint = f"; did you mean {near[0]!r}?" if near else "."
                raise SettingError(
                    f"{name}: {task} has no such setting{hint} Its settings are {', '.join(known)}",
                    name,
                )
        try:
            self._dataset(self._config(seed=0, size=1, **self._settings))
        except (AssertionError, TypeError, ValueError) as error:
            raise SettingError(
                f"env_config.task_config={self._settings!r}: {task} refuses it ({error})",
                "env_config.task_config",
            ) from error

    def draw(self, seed: int) -> Mapping[str, Any] | None:
        """Return the only item of a data set with this seed, or None if the generator fails."""
        try:
            entry: Mapping[str, Any] = self._dataset(
                self._config(seed=seed, size=1, **self._settings)
            )[0]
        except ArithmeticError:  # basic_arithmetic sometimes divides by zero.
            return None
        return entry


def _classes(task: str) -> tuple[Any, Any]:
    """Return the class of the data set and the class of its settings."""
    try:
        datasets = importlib.import_module("reasoning_gym.factory").DATASETS
    except ImportError as error:
        raise SettingError(
            f"reasoning-gym cannot be imported ({error}); install it with"
            " `pip install rllib-dapo[reasoning-gym]`"
        ) from error
    if task not in datasets:
        raise SettingError(
            f"env_config.task={task!r}: this version of reasoning-gym has no such task; install"
            " the version of `pip install rllib-dapo[reasoning-gym]`",
            "env_config.task",
        )
    dataset, config = datasets[task]
    return dataset, config
