"""Pose the problems of a data set: one episode is one problem and one completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Any, Literal
from weakref import WeakValueDictionary

import gymnasium as gym

from rllib_dapo.data.kept_columns import Kept, read_kept
from rllib_dapo.data.load import is_hub_id, load_problems, stamp
from rllib_dapo.data.load_report import OnBadRow
from rllib_dapo.data.mixture import MixedProblems, Mixture
from rllib_dapo.data.problem_set import Problem, ProblemSet
from rllib_dapo.data.source_options import SourceOptions, read_sources, source_names
from rllib_dapo.envs.spaces import UnicodeText
from rllib_dapo.errors import DataError, SettingError
from rllib_dapo.rewards.grading.grade import AUTO, Verdict, grade_all, grader_name, parse_gold
from rllib_dapo.rewards.grading.pool import read_limits


class MathEnv(gym.Env[str, str]):
    """A single-step environment: the problem is the observation, a completion is the action.

    `reset(options={"index": i})` poses problem i; without an index, one is drawn from the
    environment's own generator. Its info holds `index`, `source` (`file:row`), in a mixture
    `dataset` (the name of its source) and, if the problem is a chat, its `messages`; the
    observation is then the last of them. `step(text)` ends the episode with +1 for a
    correct completion and -1 otherwise; its info holds `correct`, `extracted`, `expected`,
    `matched_by` (see `rewards.grading.grade`) and, in a mixture, `dataset`.

    Args:
        dataset: a .jsonl, .json, .csv or .parquet file, a folder of them, a folder written
            by `save_to_disk` of the `datasets` library, or an id on the Hugging Face hub. It may
            also be a list of these. Each item is a text or `{path: …, weight: …, name: …}`, with
            further options if they differ from those below. The workers of a cluster read the
            data themselves, so give an absolute path that exists on all nodes.
        problem_key: the column of the problem; with None, the common names are recognised.
        answer_key: the column of the ground truth; with None, the common names are recognised.
        split: in a folder, only files with this word in their path are read; for a data set
            on the hub, this is its split.
        subset: the configuration of a data set on the hub.
        grader: `auto`, `robust` (reads answers as people write them) or `strict` (the DAPO
            recipe's). `auto` is `robust`, which compares integers by value; see
            `integer_answers`.
        grading: the limits for comparing values that are not numbers: `workers`, `seconds`
            and `memory_mib` (see `rewards.grading.pool.PoolSettings`).
        deduplicate: whether to keep only the first row of each problem.
        limit: if given, only this many problems are used: the first ones (of each source).
        problem_template: makes the problem out of several columns, as `"{Body} {Question}"`.
        on_bad_row: `error` refuses data with rows that cannot be used and lists them; `skip` leaves
            them out and lists them.
        shuffle: whether each epoch is a new permutation; with False, every epoch of a run has the
            order of the files (in a mixture, each source has).
        on_changed_data: what a restored run does if the data have changed: `error` or `warn`.
        columns: further columns that `reset` offers as `info["columns"]`: a list of names, or a
            mapping from name to whether it must exist. The columns that reward functions ask for
            are added by themselves.

    Attributes:
        problems: the problems by index.
        num_problems: the number of problems.
        mixture: the sizes and weights of the sources; None if there is only one source.
        grader: the grader in use.
        integer_answers: whether every ground truth is an integer. Every verdict is then an
            exact comparison of two numbers.

    Raises:
        SettingError: an argument is impossible.
        DataError: the data cannot be used; the message names file, row and column.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium's own form
    num_problems: int

    def __init__(
        self,
        *,
        dataset: str | Sequence[str | Mapping[str, Any]],
        problem_key: str | None = None,
        answer_key: str | None = None,
        split: str | None = None,
        subset: str | None = None,
        grader: str = AUTO,
        grading: Mapping[str, Any] | None = None,
        deduplicate: bool = False,
        limit: int | None = None,
        problem_template: str | None = None,
        on_bad_row: OnBadRow = "error",
        shuffle: bool = True,
        on_changed_data: Literal["error", "warn"] = "error",
        columns: Mapping[str, bool] | Sequence[str] | None = None,
        render_mode: str | None = None,
    ) -> None:
        defaults = {
            "problem_key": problem_key,
            "answer_key": answer_key,
            "split": split,
            "subset": subset,
            "deduplicate": deduplicate,
            "limit": limit,
            "problem_template": problem_template,
            "on_bad_row": on_bad_row,
        }
        for key, value, allowed in (
            ("shuffle", shuffle, (True, False)),
            ("on_changed_data", on_changed_data, ("error", "warn")),
        ):
            if value not in allowed:
                raise SettingError(
                    f"env_config.{key}={value!r}: use {' or '.join(map(str, allowed)).lower()}",
                    f"env_config.{key}",
                )
        self.shuffle = shuffle
        self.on_changed_data = on_changed_data
        self.grader = grader_name(grader, "env_config.grader")
        self._limits = read_limits(grading, "env_config.grading")
        try:
            self._columns = read_kept(columns)
            self.problems = _load(read_sources(dataset, defaults), self._columns)
        except SettingError as error:
            setting = f"env_config.{error.setting}" if error.setting else None
            raise SettingError(f"env_config.{error}", setting) from error
        self.mixture = self.problems.mixture if isinstance(self.problems, MixedProblems) else None
        self.num_problems = len(self.problems)
        self.integer_answers = self.problems.integer_answers
        self.render_mode = render_mode
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self._problem: Problem | None = None
        self._where: dict[str, str] = {}  # In a mixture it is {"dataset": name of the source}.

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Pose a problem; the observation is its text.

        Raises:
            DataError: there is no problem with this index.
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
        if isinstance(self.problems, MixedProblems):
            self._where = {"dataset": self.problems.source_name(index)}
        info: dict[str, Any] = {"index": index, "source": self._problem.source, **self._where}
        if not isinstance(self._problem.problem, str):
            info["messages"] = self._problem.problem
        if self._columns:
            info["columns"] = self._problem.columns
        return self._problem.text, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Grade a completion and end the episode."""
        ((score, info),) = self.score_group([action])
        return "", score, True, False, info

    def score_group(self, completions: Sequence[str]) -> list[tuple[float, dict[str, Any]]]:
        """Grade all completions of the problem; return for each the score and info of `step`.

        All comparisons are in flight at once, so one that hangs delays no other.
        """
        if self._problem is None:
            raise RuntimeError("MathEnv.step was called before reset: call reset() first")
        answer = self._problem.answer
        golds = [parse_gold(answer)] * len(completions)
        verdicts = grade_all(list(map(str, completions)), golds, self.grader, self._limits)
        return [(1.0 if v.correct else -1.0, self._info(v, answer)) for v in verdicts]

    def _info(self, verdict: Verdict, answer: str) -> dict[str, Any]:
        return {
            "correct": verdict.correct,
            "extracted": verdict.extracted,
            "expected": answer,
            "matched_by": verdict.matched_by,
            **self._where,
        }


# A runner makes many environments over one data set. They share one copy of it, which is dropped
# together with the last of them.
_shared: WeakValueDictionary[tuple[Any, ...], ProblemSet] = WeakValueDictionary()
_lock = Lock()


def _load(sources: Sequence[SourceOptions], columns: Kept) -> ProblemSet | MixedProblems:
    if len(sources) == 1:
        return _shared_problems(sources[0], columns)
    names = source_names(sources)
    parts = [_shared_problems(source, columns) for source in sources]
    weights = tuple(source.weight for source in sources)
    return MixedProblems(parts, Mixture(names, tuple(map(len, parts)), weights))


def _shared_problems(source: SourceOptions, columns: Kept) -> ProblemSet:
    path = source.path if is_hub_id(source.path) else str(Path(source.path).expanduser())
    options = source.reading
    stamps = stamp(path, source.split, source.subset)
    key = (path, stamps, tuple(sorted(columns)), *sorted(options.items(), key=itemgetter(0)))
    with _lock:
        problems = _shared.get(key)
        if problems is None or not {c for c in columns if columns[c]} <= set(problems.columns):
            problems = _shared[key] = load_problems(path, columns=columns, **options)
    return problems
