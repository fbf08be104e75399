"""Scoring a whole group at once, through a runner: what hangs holds up nobody else."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from scripted_engine import ScriptedEngine

from rllib_dapo.algorithm.dapo import DAPOConfig
from rllib_dapo.envs.math_env import MathEnv
from rllib_dapo.envs.spaces import UnicodeText
from rllib_dapo.rollout.engine.base import Sampling
from rllib_dapo.rollout.env_runner import DAPOEnvRunner
from rllib_dapo.rollout.sampling_job import SamplingJob
from rllib_dapo.types import Group, ProblemRef

pytestmark = pytest.mark.timeout(120)

GROUP_SIZE = 16
REFS = tuple(ProblemRef(position, position, 7) for position in range(6))
FRESH = itertools.count()
"""Numbers for completions that no verdict is remembered of."""
SECONDS = 2.0
"""The default limit of one comparison."""


class AnyText:
    """A tokenizer with a token for every character; it reads prompts like the embedded one."""

    eos_token_id = 0

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def encode(self, text: str) -> list[int]:
        return [1_000_000 + ord(letter) for letter in text]

    def decode(self, token_ids: Any, **options: Any) -> str:
        ids = [int(i) for i in token_ids]
        letters = [chr(i - 1_000_000) for i in ids if i >= 1_000_000]
        return "".join(letters) if letters or not ids else self._inner.decode(ids)


def completion(prompt: str, i: int) -> str:
    r"""Problem 0 hangs but for one completion; the others are done in no time, and finish later."""
    problem = int(prompt)
    if problem and i % 2:
        return " " * 600 * problem + rf"Answer: \sqrt{{{2 + i}}}"
    if problem or i == 11:
        return "Answer: 3!+5!+1" if not problem else r"Answer: 7+\frac{5!}{1}"
    return f"Answer: {next(FRESH)}+((9!)!)!"


class StepOnly(gym.Wrapper):  # type: ignore[type-arg]
    """Gives every completion half a point; gymnasium does not hand `score_group` through."""

    def step(self, action: str) -> Any:
        observation, score, *rest = self.env.step(action)
        return observation, score / 2, *rest


class Recorded(MathEnv):
    """Notes what is asked of it, whichever instance is asked."""

    calls: list[tuple[str, int]] = []  # noqa: RUF012 - shared on purpose

    def reset(self, **keywords: Any) -> Any:
        self.calls.append(("reset", id(self)))
        return super().reset(**keywords)

    def score_group(self, completions: Any) -> Any:
        self.calls.append(("score_group", id(self)))
        return super().score_group(completions)


class Forgetful(MathEnv):
    def score_group(self, completions: Any) -> Any:
        return super().score_group(completions)[1:]


@pytest.fixture
def make_runner(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """A function that makes a runner with engine and scorer in threads of their own."""
    rows = [{"problem": str(k), "answer": "7+5!"} for k in range(6)]
    data = tmp_path / "closed_forms.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made: list[Any] = []

    class Runner(DAPOEnvRunner):
        def make_module(self) -> None:
            tokenizer = AnyText(self._episodes._tokenizer)
            self._episodes._tokenizer = tokenizer
            self._engine = ScriptedEngine(tokenizer, completion)

    def make(env: Any = "rllib_dapo/Math-v0", *, threads: bool = True, **settings: Any) -> Any:
        config = DAPOConfig().environment(env, env_config={"dataset": str(data)})
        config.update_from_dict({"group_size": GROUP_SIZE, **settings})
        made.append(Runner(config=config, worker_index=int(threads), num_workers=int(threads)))
        return made[-1]

    yield make
    for runner in made:
        runner.stop()


def job(*refs: ProblemRef) -> SamplingJob:
    return SamplingJob(refs, GROUP_SIZE, Sampling(1.0, 1.0, 5_000), seed=11)


def collect(runner: Any, asked: SamplingJob) -> dict[int, tuple[float, Group]]:
    """For each problem the seconds until its group was there, and the group."""
    start = time.monotonic()
    found: dict[int, tuple[float, Group]] = {}
    reply = runner.collect(asked, seconds=0.0)
    while True:
        assert reply.error is reply.broken is None
        for group in reply.groups:
            found[group.ref.position] = (time.monotonic() - start, group)
        if not reply.unfinished:
            return found
        reply = runner.collect(None, seconds=10.0)


def test_a_group_that_hangs_costs_the_limit_and_others_go_on(make_runner):
    runner = make_runner()
    collect(runner, job(REFS[5]))  # the worker processes are there
    groups = collect(runner, job(*REFS[:5]))
    elapsed, hanging = groups.pop(0)
    verdicts = [c.info["matched_by"] for c in hanging.completions]
    assert verdicts.count("timed_out") == GROUP_SIZE - 1
    assert verdicts[11] == "symbolic"
    assert hanging.completions[11].correct
    # 2.5 s on a quiet machine; one by one it would be 30 s.
    assert elapsed < SECONDS + 4.0
    assert max(seconds for seconds, _ in groups.values()) < elapsed
    for _, group in groups.values():
        assert [c.correct for c in group.completions] == [True, False] * (GROUP_SIZE // 2)


def test_problems_are_posed_while_a_group_hangs(make_runner):
    runner = make_runner()
    collect(runner, job(REFS[5]))
    runner.collect(job(REFS[0]), seconds=0.5)
    start = time.monotonic()
    runner.collect(job(REFS[1]), seconds=0.0)
    assert time.monotonic() - start < SECONDS / 2
    while runner.collect(None, seconds=10.0).unfinished:
        pass


@pytest.mark.parametrize("threads", [True, False])
def test_a_group_is_posed_once_for_its_prompt_and_once_for_its_score(make_runner, threads):
    Recorded.calls.clear()
    runner = make_runner(Recorded, threads=threads)
    collect(runner, job(*REFS[1:4]))
    names = [name for name, _ in Recorded.calls]
    assert (names.count("reset"), names.count("score_group")) == (6, 3)
    posing = id(runner.env.unwrapped)
    assert posing not in {env for name, env in Recorded.calls if name == "score_group"}


@pytest.mark.parametrize("threads", [True, False])
def test_one_by_one_gives_the_same_scores_and_infos(make_runner, threads, monkeypatch):
    together = collect(make_runner(threads=threads), job(*REFS[1:4]))
    monkeypatch.setattr("rllib_dapo.rollout.text_episodes.find_score_group", lambda env: None)
    apart = collect(make_runner(threads=threads), job(*REFS[1:4]))
    assert together.keys() == apart.keys()
    for position, (_, group) in together.items():
        _same_group(group, apart[position][1])


def _same_group(group: Group, other: Group) -> None:
    assert group.ref == other.ref
    for mine, its in zip(group.completions, other.completions, strict=True):
        assert (mine.score, mine.correct, mine.text) == (its.score, its.correct, its.text)
        assert list(mine.info.items()) == list(its.info.items())


def test_a_wrapper_that_changes_step_is_asked_instead(make_runner):
    runner = make_runner(lambda config: StepOnly(MathEnv(**config)))
    ((_, group),) = collect(runner, job(REFS[1])).values()
    assert [c.score for c in group.completions] == [0.5, -0.5] * (GROUP_SIZE // 2)


def test_scores_that_are_missing_make_a_failed_group(make_runner):
    ((_, group),) = collect(make_runner(Forgetful), job(REFS[1])).values()
    assert group.failure == "ValueError: score_group gave 15 scores for 16 completions"


def test_an_environment_without_it_is_played_one_by_one(make_runner):
    class Plain(gym.Env):  # type: ignore[type-arg]
        observation_space = action_space = UnicodeText()
        seen: list[str] = []  # noqa: RUF012 - shared on purpose

        def __init__(self, dataset: str) -> None:
            self.posed = ""

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.posed = str(options["index"])
            self.seen.append("reset")
            return self.posed, {}

        def step(self, action: str) -> Any:
            self.seen.append("step")
            return "", float(self.posed), True, False, {}

    groups = collect(make_runner(Plain), job(*REFS[1:5]))
    assert {p: {c.score for c in g.completions} for p, (_, g) in groups.items()} == {
        p: {float(p)} for p in range(1, 5)
    }
    assert Plain.seen.count("reset") == 4 + Plain.seen.count("step") == 4 + 4 * GROUP_SIZE
