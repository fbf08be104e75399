"""An inference engine without a model: answers of drawn lengths, at a speed that is set.

It stands where vLLM stands and keeps the same contract (queue, capacity, one random stream an
answer, aborts, weights that change under running answers), so that everything around an
engine can be run with the traffic of many GPUs on a machine that has none. What it says
means nothing: tokens are drawn uniformly from a list.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rllib_dapo.errors import EngineError, refuse
from rllib_dapo.model.device import Place, place_of
from rllib_dapo.rollout.engine.answer_lengths import AnswerLengths
from rllib_dapo.rollout.engine.base import FinishedRequest, SampledAnswer, Sampling
from rllib_dapo.types import FloatArray, VersionStarts


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step: a fixed part and a part for each running answer.

    Reading the weights is the fixed part of decoding, reading the answers' keys and values
    the other one. The defaults are 0: as fast as Python is.
    """

    fixed_s: float = 0.0
    per_answer_s: float = 0.0

    def seconds(self, running: int) -> float:
        """Of a step with so many running answers."""
        return self.fixed_s + self.per_answer_s * running


@dataclass(slots=True)
class _Request:
    """A request and its answers so far."""

    request_id: str
    answers: list[SampledAnswer | None]
    left: int


@dataclass(order=True, slots=True)
class _Answer:
    """One answer, ordered by the token clock at which it is complete."""

    ends: int
    serial: int
    starts: int = field(compare=False)
    length: int = field(compare=False)
    cut: bool = field(compare=False)
    place: int = field(compare=False)
    request: _Request = field(compare=False)
    rng: np.random.Generator = field(compare=False)


class ScriptedEngine:
    """An `InferenceEngine` with nothing inside.

    The same seed gives the same answer, whatever runs beside it; weights do not change
    answers, but every token knows their version. A step costs Python's time only where
    answers finish, so hundreds of engines fit one process.

    Args:
        lengths: how long answers are; `Sampling.max_tokens` cuts them.
        words: token ids that answers are made of, without the EOS.
        eos: token id that ends an answer.
        capacity: answers computed at once; more wait, first come, first served.
        step_time: how long a step takes.
        tokens_per_step: tokens of each answer that one step computes; more than 1 plays long
            answers in fewer steps.
        sleep: how time passes; tests give a function that only counts.

    Raises:
        SettingError: a number is out of its range.
    """

    def __init__(
        self,
        lengths: AnswerLengths,
        *,
        words: Sequence[int],
        eos: int,
        capacity: int = 256,
        step_time: StepTime | None = None,
        tokens_per_step: int = 1,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if capacity < 1:
            refuse("capacity", capacity, "an engine computes at least 1 answer at once")
        if tokens_per_step < 1:
            refuse("tokens_per_step", tokens_per_step, "a step computes at least 1 token")
        self.weights_version = 0
        self.capacity = capacity
        self._lengths = lengths
        self._words = np.array(words, dtype=np.int64)
        self._eos = eos
        self._step_time = StepTime() if step_time is None else step_time
        self._tokens_per_step = tokens_per_step
        self._sleep = sleep
        self._clock = 0  # tokens that an answer running since the beginning would have
        self._serial = 0  # answers that began to run; ties end in this order
        self._requests: dict[str, _Request] = {}
        self._waiting: deque[_Answer] = deque()
        self._running: list[_Answer] = []  # a heap: what ends first is in front
        self._versions: dict[int, int] = {0: 0}  # token clock -> version from then on

    def submit(
        self, request_id: str, prompt: Sequence[int], n: int, sampling: Sampling, *, seed: int
    ) -> None:
        """Queue a request for n answers; the prompt has no say.

        Raises:
            EngineError: there is an unfinished request of this id.
        """
        if request_id in self._requests:
            raise EngineError(f"request_id={request_id!r} is unfinished: use another one")
        request = _Request(request_id, [None] * n, n)
        self._requests[request_id] = request
        for place in range(n):
            rng = np.random.default_rng(seed + place)
            natural = self._lengths.draw(rng)
            cut = natural > sampling.max_tokens
            length = sampling.max_tokens if cut else int(natural)
            self._waiting.append(_Answer(0, 0, 0, length, cut, place, request, rng))

    def step(self) -> list[FinishedRequest]:
        """Compute the next tokens of every running answer; return the requests now complete."""
        self._admit()
        if not self._running:
            return []
        self._sleep(self._step_time.seconds(len(self._running)))
        self._clock += self._tokens_per_step
        finished = []
        while self._running and self._running[0].ends <= self._clock:
            answer = heapq.heappop(self._running)
            request = answer.request
            request.answers[answer.place] = self._sampled(answer)
            request.left -= 1
            if not request.left:
                del self._requests[request.request_id]
                answers = tuple(a for a in request.answers if a is not None)
                finished.append(FinishedRequest(request.request_id, answers))
        return finished

    @property
    def num_unfinished(self) -> int:
        """Requests submitted and not yet returned."""
        return len(self._requests)

    @property
    def num_running(self) -> int:
        """Answers that the next step would compute, those it admits left out."""
        return len(self._running)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Withdraw unfinished requests; others are passed over."""
        withdrawn = {id(self._requests.pop(i)) for i in request_ids if i in self._requests}
        if withdrawn:
            self._waiting = deque(a for a in self._waiting if id(a.request) not in withdrawn)
            self._running = [a for a in self._running if id(a.request) not in withdrawn]
            heapq.heapify(self._running)

    def abort_all(self) -> None:
        """Withdraw every unfinished request."""
        self.abort(list(self._requests))

    def load_weights(
        self, weights: Mapping[str, Any], version: int, checksums: Mapping[str, int] | None = None
    ) -> None:
        """Tokens from here on are by this version; the weights are not looked at."""
        oldest = min((answer.starts for answer in self._running), default=self._clock)
        before = max(clock for clock in self._versions if clock <= oldest)
        self._versions = {c: v for c, v in self._versions.items() if c >= before}
        self._versions[self._clock] = version
        self.weights_version = version

    def prompt_logprobs(self, token_ids: Sequence[int]) -> FloatArray:
        """float32[T-1]: each token as probable as any other of the words."""
        return self._uniform(len(token_ids) - 1)

    def places(self) -> list[Place]:
        """One: the process it is in, although nothing is computed there."""
        return [place_of("cpu")]

    def shutdown(self) -> None:
        """Withdraw everything."""
        self.abort_all()

    def _admit(self) -> None:
        """Let waiting answers run while there is room."""
        while self._waiting and len(self._running) < self.capacity:
            answer = self._waiting.popleft()
            self._serial += 1
            answer.starts, answer.serial = self._clock, self._serial
            answer.ends = self._clock + answer.length
            heapq.heappush(self._running, answer)

    def _sampled(self, answer: _Answer) -> SampledAnswer:
        """A complete answer; its tokens are drawn only now."""
        token_ids = answer.rng.choice(self._words, answer.length)
        if not answer.cut:
            token_ids[-1] = self._eos
        return SampledAnswer(
            token_ids,
            self._uniform(answer.length),
            "length" if answer.cut else "stop",
            self._version_starts(answer),
        )

    def _version_starts(self, answer: _Answer) -> VersionStarts:
        """Which weights sampled which tokens: stretches of equal versions are one."""
        starts: list[tuple[int, int]] = []
        for clock, version in self._versions.items():  # in the order of the clock
            if clock <= answer.starts:
                starts = [(0, version)]
            elif clock < answer.ends and starts[-1][1] != version:
                starts.append((clock - answer.starts, version))
        return tuple(starts)

    def _uniform(self, tokens: int) -> FloatArray:
        return np.full(tokens, -math.log(len(self._words)), np.float32)
