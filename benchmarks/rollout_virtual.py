"""Runners whose time is counted instead of waited for.

A discrete-event simulation of many scripted engines behind the driver's own pool and loop:
the runner whose clock is furthest behind makes the next step. The time of a schedule is then
exact, however slow or busy the machine is that works it out. Scoring and messages take none.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import partial
from typing import Any

from rllib_dapo.data.prompts import PromptRenderer
from rllib_dapo.data.stops import Stops
from rllib_dapo.envs.make import make_env
from rllib_dapo.model.facts import load_tokenizer, model_facts
from rllib_dapo.rollout.engine.base import FinishedRequest
from rllib_dapo.rollout.engine.scripted import ScriptedEngine
from rllib_dapo.rollout.runner_calls import CallResults
from rllib_dapo.rollout.sampling_job import RunnerReply, SamplingJob, completion_seed
from rllib_dapo.rollout.text_episodes import TextEpisodes
from rllib_dapo.types import Group, ProblemRef, Prompt


class VirtualRunner:
    """One engine with a clock of its own.

    Attributes:
        now: seconds at which its last step ended.
        until: when it replies at the latest; None while it is not asked.
        steps: made so far.
    """

    def __init__(self, config: Any, episodes: TextEpisodes, words: list[int], eos: int) -> None:
        self.now = 0.0
        self.until: float | None = None
        self.steps = 0
        self._busy = 0.0
        self._episodes = episodes
        self._open: dict[str, tuple[ProblemRef, Prompt]] = {}
        self._engine = ScriptedEngine(
            words=words, eos=eos, sleep=self._let_pass, **config.engine_kwargs
        )

    @property
    def working(self) -> bool:
        """Whether a step would compute something."""
        return self._engine.num_in_flight > 0

    def take(self, job: SamplingJob, now: float) -> None:
        """Take problems on."""
        if not self.working:
            self.now = now
        for ref in job.refs:
            prompt = self._episodes.pose(ref)
            self._open[str(ref.position)] = (ref, prompt)
            self._engine.submit(
                str(ref.position),
                prompt.token_ids.tolist(),
                job.group_size,
                job.sampling,
                seed=completion_seed(job, ref),
            )

    def step(self) -> list[Group]:
        """Make a step; the groups it finished, scored."""
        self.steps += 1
        return [self._score(request) for request in self._engine.step()]

    def withdraw(self) -> None:
        """Forget everything that is not finished."""
        self._engine.abort_all()
        self._open.clear()

    def reply(self, groups: list[Group]) -> RunnerReply:
        """What it says when it is asked."""
        self.until = None
        return RunnerReply(
            tuple(groups), len(self._open), self.steps, self._busy, self._engine.capacity
        )

    def _score(self, request: FinishedRequest) -> Group:
        ref, prompt = self._open.pop(request.request_id)
        return self._episodes.group(ref, prompt, request.completions, self._engine.weights_version)

    def _let_pass(self, seconds: float) -> None:
        self.now += seconds
        self._busy += seconds


class VirtualCalls:
    """Calls (`RunnerCalls`) to virtual runners.

    Args:
        config: the algorithm's; `engine_kwargs` are those of the scripted engine.
        runners: how many.

    Attributes:
        now: virtual seconds so far.
        env: the one environment of all runners.
    """

    def __init__(self, config: Any, runners: int) -> None:
        self.now = 0.0
        self.env = make_env(config.env, config.env_config)
        facts = model_facts(config.language_model, trust_remote_code=False)
        tokenizer = load_tokenizer(facts.path, trust_remote_code=False)
        renderer = PromptRenderer.from_settings(config)
        another = partial(make_env, config.env, config.env_config)
        stops = Stops.from_settings(config, renderer)
        episodes = TextEpisodes(
            lambda ref: self.env, lambda ref: another(), [renderer] * 2, tokenizer, stops, []
        )
        special = set(tokenizer.all_special_ids)
        words = [i for i in range(len(tokenizer)) if i not in special]
        self._runners = {
            number: VirtualRunner(config, episodes, words, facts.stop_token_ids[0])
            for number in range(1, runners + 1)
        }

    def alive(self) -> list[int]:
        """All of them, always."""
        return list(self._runners)

    def start(self, runner: int, job: SamplingJob | None, seconds: float) -> bool:
        """Hand a job over; the reply comes when a group is finished, or after so long."""
        called = self._runners[runner]
        if called.until is not None:
            return False
        if job is not None:
            called.take(job, self.now)
        called.until = self.now + seconds
        return True

    def replies(self) -> list[tuple[int, RunnerReply]]:
        """Let time pass until a runner has something to say."""
        asked = {n: r for n, r in self._runners.items() if r.until is not None}
        clocks = [(runner.now, number) for number, runner in asked.items() if runner.working]
        if not clocks:
            return [(number, runner.reply([])) for number, runner in asked.items()]
        heapq.heapify(clocks)
        while True:
            number = clocks[0][1]
            runner = asked[number]
            groups = runner.step()
            if groups or runner.now >= (runner.until or 0.0):
                self.now = max(self.now, runner.now)
                return [(number, runner.reply(groups))]
            heapq.heapreplace(clocks, (runner.now, number))

    def call(self, runners: Sequence[int], method: str, *arguments: Any) -> CallResults:
        """Call a method of runners."""
        return CallResults(
            {number: getattr(self._runners[number], method)(*arguments) for number in runners}
        )

    def kill(self, runner: int) -> None:
        """They do not die."""

    def returned(self) -> list[int]:
        """They never leave."""
        return []
