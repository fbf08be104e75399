"""Problems of a data set: one episode is one problem and one answer."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import gymnasium as gym

from rllib_dapo.data.problems import Problem, ProblemSet, load_problems
from rllib_dapo.data.readers import find_files
from rllib_dapo.envs.spaces import UnicodeText
from rllib_dapo.errors import DataError, SettingError
from rllib_dapo.rewards.verify import find_grader, parse_gold


class MathEnv(gym.Env[str, str]):
    """Single-step environment: the observation is the problem, the action the whole answer.

    `reset(options={"index": i})` poses problem i; without an index one is drawn from the
    environment's own generator. Its info holds `index`, `source` (`file:row`) and, where the
    data set has chat messages, `messages`: the observation is then the last of them.
    `step(text)` ends the episode with +1 for a correct answer and -1 otherwise; its info
    holds `correct`, `extracted`, `expected` and `matched_by` (see `rewards.verify`).

    Args:
        dataset: a .jsonl, .json, .csv or .parquet file, or a folder of them. Workers of a
            cluster read it themselves: give an absolute path that all nodes have.
        problem_key: column of the problem; None recognises the common ones.
        answer_key: column of the ground truth, likewise.
        split: of a folder, only files with this word in their path.
        grader: `robust` (as people write answers) or `strict` (the DAPO recipe's).
        deduplicate: keep only the first row of each problem.
        limit: use only the first so many problems.

    Raises:
        SettingError: an argument is impossible.
        DataError: the data cannot be used; names file, row and column.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium's own form
    num_problems: int

    def __init__(
        self,
        *,
        dataset: str,
        problem_key: str | None = None,
        answer_key: str | None = None,
        split: str | None = None,
        grader: str = "robust",
        deduplicate: bool = False,
        limit: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._grade = find_grader(grader, "env_config.grader")
        if limit is not None and limit < 1:
            raise SettingError(
                f"env_config.limit={limit}: use 1 or more problems", "env_config.limit"
            )
        self.problems = _shared_problems(
            dataset,
            problem_key=problem_key,
            answer_key=answer_key,
            split=split,
            deduplicate=deduplicate,
            limit=limit,
        )
        self.num_problems = len(self.problems)
        self.grader = grader
        self.render_mode = render_mode
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self._problem: Problem | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Pose a problem; the observation is its text.

        Raises:
            DataError: there is no problem with the index asked for.
        """
        super().reset(seed=seed)
        index = (options or {}).get("index")
        if index is None:
            index = self.np_random.integers(0, self.num_problems)
        index = int(index)
        if not 0 <= index < self.num_problems:
            raise DataError(
                f'options["index"]={index}: {self.problems.name} has {self.num_problems} problems,'
                f" numbered 0 to {self.num_problems - 1}"
            )
        self._problem = self.problems[index]
        info: dict[str, Any] = {"index": index, "source": self._problem.source}
        if not isinstance(self._problem.problem, str):
            info["messages"] = self._problem.problem
        return self._problem.text, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Grade an answer; the episode is over."""
        if self._problem is None:
            raise RuntimeError("MathEnv.step before reset: call reset() first")
        verdict = self._grade(str(action), parse_gold(self._problem.answer))
        info = {
            "correct": verdict.correct,
            "extracted": verdict.extracted,
            "expected": self._problem.answer,
            "matched_by": verdict.matched_by,
        }
        return "", 1.0 if verdict.correct else -1.0, True, False, info


# A runner makes many environments over one data set: they share one copy of it, which is
# dropped with the last of them.
_shared: WeakValueDictionary[tuple[Any, ...], ProblemSet] = WeakValueDictionary()
_lock = Lock()


def _shared_problems(dataset: str, *, split: str | None, **options: Any) -> ProblemSet:
    path = Path(dataset).expanduser()
    stamps = tuple(
        (str(file.resolve()), (stat := file.stat()).st_mtime_ns, stat.st_size)
        for file in find_files(path, split)
    )
    key = (str(path), split, stamps, *sorted(options.items(), key=lambda item: item[0]))
    with _lock:
        problems = _shared.get(key)
        if problems is None:
            problems = _shared[key] = load_problems(path, split=split, **options)
    return problems
