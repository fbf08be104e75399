"""An inference engine that plays back a script, for tests of everything around it.

It answers requests like the real one (whole requests, one token a step, EOS included), but
what it says comes from a function of the prompt's text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rllib_dapo.model.device import Place, place_of
from rllib_dapo.rollout.engine.base import FinishedRequest, SampledCompletion, Sampling
from rllib_dapo.rollout.env_runner import DAPOEnvRunner

Script = Callable[[str, int], str]
"""(text of the prompt, number of the answer in its group) -> text of the answer"""


def solution(prompt: str) -> int:
    """The value of a sum such as `12+35-7=?`."""
    return sum(int(term) for term in re.findall(r"[+-]?\d+", prompt))


def right(prompt: str, i: int) -> str:
    return f"Answer: {solution(prompt)}"


def wrong(prompt: str, i: int) -> str:
    return f"Answer: {solution(prompt) + 1}"


def mixed(prompt: str, i: int) -> str:
    """Every second answer is right: each group carries a signal."""
    return right(prompt, i) if i % 2 else wrong(prompt, i)


class ScriptedEngine:
    """See the module. Every token has the log-probability -1."""

    def __init__(self, tokenizer: Any, script: Script) -> None:
        self.weights_version = 0
        self.loaded: list[int] = []  # versions, in the order they came
        self.seeds: list[int] = []
        self.capacity = 256
        self.prompts: list[str] = []
        self._tokenizer = tokenizer
        self._script = script
        self._running: dict[str, tuple[int, FinishedRequest]] = {}

    def submit(
        self, request_id: str, prompt: Sequence[int], n: int, sampling: Sampling, *, seed: int
    ) -> None:
        self.seeds.append(seed)
        text = self._tokenizer.decode(list(prompt))
        self.prompts.append(text)
        answers = tuple(self._answer(self._script(text, i), sampling) for i in range(n))
        steps = max(len(a.token_ids) for a in answers)
        self._running[request_id] = (steps, FinishedRequest(request_id, answers))

    def _answer(self, text: str, sampling: Sampling) -> SampledCompletion:
        ids = [*self._tokenizer.encode(text), self._tokenizer.eos_token_id]
        reason = "stop" if len(ids) <= sampling.max_tokens else "length"
        ids = ids[: sampling.max_tokens]
        return SampledCompletion(np.array(ids, np.int64), np.full(len(ids), -1, np.float32), reason)

    def step(self) -> list[FinishedRequest]:
        finished = []
        for name, (left, request) in list(self._running.items()):
            if left > 1:
                self._running[name] = (left - 1, request)
            else:
                finished.append(self._running.pop(name)[1])
        return finished

    @property
    def num_in_flight(self) -> int:
        return len(self._running)

    def abort_all(self) -> None:
        self._running.clear()

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._running.pop(request_id, None)

    def places(self) -> list[Place]:
        return [place_of("cpu")]

    def load_weights(self, weights: Mapping[str, Any], version: int, checksums: Any = None) -> None:
        self.weights_version = version
        self.loaded.append(version)

    def shutdown(self) -> None:
        self.abort_all()


NO_MODEL = {"sync_check_interval": 0}
"""Settings for runs with such an engine: it has no log-probabilities to compare."""


def scripted_runner(script: Script) -> type[DAPOEnvRunner]:
    """A runner class with a scripted engine, for `config.env_runners(env_runner_cls=…)`."""

    class ScriptedRunner(DAPOEnvRunner):
        def make_module(self) -> None:
            self._engine = ScriptedEngine(self._episodes._tokenizer, script)

    return ScriptedRunner
