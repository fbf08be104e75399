"""Runners whose processes really die, hang or fail, when a test says so.

A test leaves a note in a folder (`arm`); the engine of the runner that is meant reads it
when it starts, before its next steps, or before it takes weights over, and does what it says,
once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scripted_engine
from ray import cloudpickle
from scripted_engine import ScriptedEngine, solution

from rllib_dapo.rollout.engine.base import FinishedRequest, Sampling
from rllib_dapo.rollout.env_runner import DAPOEnvRunner

# Ray's workers do not find the modules of the tests.
for _module in (scripted_engine, sys.modules[__name__]):
    cloudpickle.register_pickle_by_value(_module)

Where = Literal["step", "load", "start"]
What = Literal["kill", "stop", "hang", "throw"]

# Steps of work that an engine does before the fault: it hits in the middle of answers.
_STEPS_BEFORE = 3


def arm(folder: Path, runner: int, what: What, where: Where = "step") -> None:
    """Have a runner fail: SIGKILL, SIGSTOP, a call that never returns, or an exception."""
    note = folder / f"{where}-{runner}"
    note.with_suffix(".new").write_text(what, encoding="utf-8")
    note.with_suffix(".new").rename(note)


def events(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """What engines noted: `started`, `loaded` (a version), `asked` (a prompt, by a version)."""
    path = folder / "events"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [e for e in map(json.loads, lines) if e["kind"] in kinds]


class FaultyEngine(ScriptedEngine):
    """Answers of uneven length, right or wrong by their random streams, a few ms a token.

    Args:
        tokenizer: see `ScriptedEngine`.
        folder: where notes are found and events are left.
        runner: the number of the runner.
        step_s: seconds of a step, on average; they are drawn anew in every process.
        poison: a prompt that kills whichever process answers it.
        forgetful: keep and note nothing about what was asked.
    """

    def __init__(
        self,
        tokenizer: Any,
        folder: Path,
        runner: int,
        step_s: float,
        poison: str | None = None,
        forgetful: bool = False,
    ) -> None:
        super().__init__(tokenizer, self._speak)
        self.capacity = 8
        self._folder, self._runner, self._poison = folder, runner, poison
        self._step_s, self._jitter = step_s, np.random.default_rng()
        self._seed, self._steps, self._forgetful = 0, 0, forgetful
        self._texts: dict[str, str] = {}
        self._note("started")
        self._obey("start")

    def submit(
        self, request_id: str, prompt: Sequence[int], n: int, sampling: Sampling, *, seed: int
    ) -> None:
        self._seed = seed
        super().submit(request_id, prompt, n, sampling, seed=seed)
        if self._forgetful:
            self.prompts.clear()
            self.seeds.clear()
            self.loaded.clear()
            return
        self._texts[request_id] = self.prompts[-1].strip()
        self._note("asked", prompt=self._texts[request_id], version=self.weights_version)

    def step(self) -> list[FinishedRequest]:
        if self._step_s:
            time.sleep(self._jitter.exponential(self._step_s))
        self._steps += 1
        if self._steps > _STEPS_BEFORE:
            self._obey("step")
        if self._poison in [self._texts.get(request_id, "") for request_id in self._running]:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step()

    def load_weights(self, weights: Mapping[str, Any], version: int, checksums: Any = None) -> None:
        self._obey("load")
        super().load_weights(weights, version)
        self._note("loaded", version=version)

    def _speak(self, prompt: str, i: int) -> str:
        rng = np.random.default_rng(self._seed + i)
        value = solution(prompt) + int(rng.random() < 0.5)
        return " " * int(rng.integers(12)) + f"Answer: {value}"

    def _obey(self, where: Where) -> None:
        note = self._folder / f"{where}-{self._runner}"
        try:
            what = note.read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        note.unlink()
        if what == "throw":
            raise RuntimeError("out of memory")
        if what != "hang":
            os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGSTOP)
        while what == "hang":
            time.sleep(60)

    def _note(self, kind: str, **what: Any) -> None:
        event = {"kind": kind, "runner": self._runner, "process": os.getpid(), **what}
        with (self._folder / "events").open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")


def faulty_runner(
    folder: Path,
    *,
    step_s: float = 0.003,
    poison: str | None = None,
    forgetful: bool = False,
) -> type[DAPOEnvRunner]:
    """A runner class with a `FaultyEngine`, for `config.env_runners(env_runner_cls=…)`."""

    class FaultyRunner(DAPOEnvRunner):
        def make_module(self) -> None:
            self._engine = FaultyEngine(
                self._episodes._tokenizer, folder, self.worker_index, step_s, poison, forgetful
            )

    return FaultyRunner
