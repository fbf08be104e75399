"""An inference engine without a model: completions have drawn lengths and a chosen speed.

It takes vLLM's place and keeps the same contract (queue, capacity, one random stream for each
completion, aborts, weights that change under running completions). So everything around an
engine can be run with the traffic of many GPUs on a machine that has none. Its completions mean
nothing: tokens are drawn uniformly from a list.
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
from rllib_dapo.rollout.engine.base import FinishedRequest, SampledCompletion, Sampling
from rllib_dapo.types import FloatArray, VersionStarts


@dataclass(frozen=True, slots=True)
class CompletionLengths:
    """A log-normal distribution of lengths, and a share of completions that never end.

    Reasoning models make completions of skewed lengths: most are short, a few are many times as
    long, and some never end. Rollouts wait for the longest, so schedulers are tried on the tail.

    Attributes:
        median: median length of the completions that end by themselves, in tokens, the closing
            EOS included.
        sigma: standard deviation of the length's logarithm; 0 makes all of them equally long.
        endless: share of the completions that go on until the limit cuts them, from 0 to 1. The
            log-normal's own tail beyond the limit is cut too and comes on top.

    Raises:
        SettingError: a number is out of its range.

    Example: `CompletionLengths(median=2000, sigma=0.8, endless=0.03)` with a limit of 8192
    tokens: 7% are cut, and the mean is 2,800 tokens.
    """

    median: float
    sigma: float = 0.0
    endless: float = 0.0

    def __post_init__(self) -> None:
        if not self.median >= 1:
            refuse("median", self.median, "a completion has at least 1 token, its EOS")
        if not self.sigma >= 0:
            refuse("sigma", self.sigma, "use 0 or more")
        if not 0 <= self.endless <= 1:
            refuse("endless", self.endless, "use a share from 0 to 1")

    def draw(self, rng: np.random.Generator) -> float:
        """Length of one completion in whole tokens, from 1; infinite if it never ends."""
        if rng.random() < self.endless:
            return math.inf
        return float(max(1, round(self.median * math.exp(self.sigma * rng.standard_normal()))))


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step: a fixed part, and a part for each running completion.

    In decoding the fixed part is reading the weights, the other one reading the completions'
    keys and values. With the defaults of 0 the engine is as fast as Python.
    """

    fixed_s: float = 0.0
    per_completion_s: float = 0.0

    def seconds(self, running: int) -> float:
        """Seconds of a step with this many running completions."""
        return self.fixed_s + self.per_completion_s * running


@dataclass(slots=True)
class _Request:
    """A request and its completions so far."""

    request_id: str
    completions: list[SampledCompletion | None]
    left: int


@dataclass(order=True, slots=True)
class _Completion:
    """One completion, ordered by the token clock at which it is done."""

    ends: int
    serial: int
    starts: int = field(compare=False)
    length: int = field(compare=False)
    cut: bool = field(compare=False)
    index: int = field(compare=False)
    request: _Request = field(compare=False)
    rng: np.random.Generator = field(compare=False)


class ScriptedEngine:
    """An `InferenceEngine` that computes nothing.

    The same seed gives the same completion, whatever runs beside it. Weights do not change
    completions, but every token knows their version. A step costs Python's time only where
    completions end, so hundreds of engines fit one process.

    Args:
        lengths: how long completions are; `Sampling.max_tokens` cuts them.
        words: the token ids that completions are made of, without the EOS.
        eos: the token id that ends a completion.
        capacity: how many completions are computed at once; more wait, first come, first served.
        step_time: how long a step takes.
        tokens_per_step: how many tokens of each completion one step computes; more than 1 plays
            long completions in fewer steps.
        sleep: how time passes; tests give a function that only counts.

    Raises:
        SettingError: a number is out of its range.
    """

    def __init__(
        self,
        lengths: CompletionLengths,
        *,
        words: Sequence[int],
        eos: int,
        capacity: int = 256,
        step_time: StepTime | None = None,
        tokens_per_step: int = 1,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if capacity < 1:
            refuse("capacity", capacity, "an engine computes at least 1 completion at once")
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
        self._clock = 0  # tokens that a completion running since the start would have
        self._serial = 0  # completions that began to run; ties end in this order
        self._requests: dict[str, _Request] = {}
        self._waiting: deque[_Completion] = deque()
        self._running: list[_Completion] = []  # a heap: what ends first is in front
        self._versions: dict[int, int] = {0: 0}  # token clock -> version from then on

    def submit(
        self, request_id: str, prompt: Sequence[int], n: int, sampling: Sampling, *, seed: int
    ) -> None:
        """Queue a request for n completions; the prompt does not change them.

        Raises:
            EngineError: a request of this id is in flight.
        """
        if request_id in self._requests:
            raise EngineError(f"request_id={request_id!r} is in flight: use another one")
        request = _Request(request_id, [None] * n, n)
        self._requests[request_id] = request
        for index in range(n):
            rng = np.random.default_rng(seed + index)
            natural = self._lengths.draw(rng)
            cut = natural > sampling.max_tokens
            length = sampling.max_tokens if cut else int(natural)
            self._waiting.append(_Completion(0, 0, 0, length, cut, index, request, rng))

    def step(self) -> list[FinishedRequest]:
        """Compute the next tokens of every running completion; return the requests now complete."""
        self._admit()
        if not self._running:
            return []
        self._sleep(self._step_time.seconds(len(self._running)))
        self._clock += self._tokens_per_step
        finished = []
        while self._running and self._running[0].ends <= self._clock:
            completion = heapq.heappop(self._running)
            request = completion.request
            request.completions[completion.index] = self._sampled(completion)
            request.left -= 1
            if not request.left:
                del self._requests[request.request_id]
                completions = tuple(c for c in request.completions if c is not None)
                finished.append(FinishedRequest(request.request_id, completions))
        return finished

    @property
    def num_in_flight(self) -> int:
        """How many requests are in flight: submitted and not yet returned."""
        return len(self._requests)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Withdraw requests in flight; unknown ids are ignored."""
        withdrawn = {id(self._requests.pop(i)) for i in request_ids if i in self._requests}
        if withdrawn:
            self._waiting = deque(c for c in self._waiting if id(c.request) not in withdrawn)
            self._running = [c for c in self._running if id(c.request) not in withdrawn]
            heapq.heapify(self._running)

    def abort_all(self) -> None:
        """Withdraw every request in flight."""
        self.abort(list(self._requests))

    def load_weights(
        self, weights: Mapping[str, Any], version: int, checksums: Mapping[str, int] | None = None
    ) -> None:
        """Tokens from here on have this version; the weights themselves are not used."""
        oldest = min((completion.starts for completion in self._running), default=self._clock)
        before = max(clock for clock in self._versions if clock <= oldest)
        self._versions = {c: v for c, v in self._versions.items() if c >= before}
        self._versions[self._clock] = version
        self.weights_version = version

    def prompt_logprobs(self, token_ids: Sequence[int]) -> FloatArray:
        """float32[T-1]: every token is as probable as any other of the words."""
        return self._uniform(len(token_ids) - 1)

    def places(self) -> list[Place]:
        """One place, the process it is in, although nothing is computed there."""
        return [place_of("cpu")]

    def shutdown(self) -> None:
        """Withdraw every request in flight."""
        self.abort_all()

    def _admit(self) -> None:
        """Let waiting completions run while there is room."""
        while self._waiting and len(self._running) < self.capacity:
            completion = self._waiting.popleft()
            self._serial += 1
            completion.starts, completion.serial = self._clock, self._serial
            completion.ends = self._clock + completion.length
            heapq.heappush(self._running, completion)

    def _sampled(self, completion: _Completion) -> SampledCompletion:
        """A completion that is done; its tokens are drawn only now."""
        token_ids = completion.rng.choice(self._words, completion.length)
        if not completion.cut:
            token_ids[-1] = self._eos
        return SampledCompletion(
            token_ids,
            self._uniform(completion.length),
            "length" if completion.cut else "stop",
            self._version_starts(completion),
        )

    def _version_starts(self, completion: _Completion) -> VersionStarts:
        """Which weights sampled which tokens; a stretch of one version is one entry."""
        starts: list[tuple[int, int]] = []
        for clock, version in self._versions.items():  # in the order of the clock
            if clock <= completion.starts:
                starts = [(0, version)]
            elif clock < completion.ends and starts[-1][1] != version:
                starts.append((clock - completion.starts, version))
        return tuple(starts)

    def _uniform(self, tokens: int) -> FloatArray:
        return np.full(tokens, -math.log(len(self._words)), np.float32)
