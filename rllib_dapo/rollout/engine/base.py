"""What the rest of the package knows of an inference engine.

An engine takes requests (one prompt, n answers), is stepped by its owner, and hands back
each request when all its answers are done. It has no thread of its own: whoever owns it
decides when it computes. Every answer has a random stream of its own: what else runs beside it,
and on which runner, does not change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rllib_dapo.types import FinishReason, FloatArray, IntArray, VersionStarts


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are sampled; nothing else than this has a say.

    Attributes:
        temperature: 0 is greedy.
        top_p: nucleus mass, 1 keeps the whole distribution.
        max_tokens: longest answer, in tokens.
    """

    temperature: float
    top_p: float
    max_tokens: int


def stream_seed(*entropy: int) -> int:
    """A seed for `InferenceEngine.submit`: no two inputs share a stream with any n answers."""
    (word,) = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    return int(word >> np.uint64(2))  # so that seed plus n stays in 63 bits


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """One answer as the engine sampled it.

    Attributes:
        token_ids: int64[T], the closing EOS included when one was sampled.
        logprobs: float32[T], nats, of the distribution sampled from.
        finish_reason: see `FinishReason`.
        versions: which weights sampled which tokens, see `VersionStarts`.
    """

    token_ids: IntArray
    logprobs: FloatArray
    finish_reason: FinishReason
    versions: VersionStarts = ()


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """All n answers of one request, in the engine's own order of sampling."""

    request_id: str
    answers: tuple[SampledAnswer, ...]


class InferenceEngine(Protocol):
    """A text generator whose weights can be replaced."""

    capacity: int
    """Answers that it computes at once; more wait in its queue."""

    def submit(
        self, request_id: str, prompt: Sequence[int], n: int, sampling: Sampling, *, seed: int
    ) -> None:
        """Queue a request for n answers to one prompt.

        Args:
            request_id: comes back with the answers; not the id of an unfinished request.
            prompt: token ids.
            n: answers, 1 or more.
            sampling: how to sample.
            seed: of the random streams: answer i gets that of `seed + i`.
        """
        ...

    def step(self) -> list[FinishedRequest]:
        """Compute one token of every running answer; return the requests now complete.

        While the weights are being replaced it computes nothing.

        Raises:
            EngineError: the weights must not serve.
        """
        ...

    @property
    def weights_version(self) -> int:
        """Version of the weights that serve; 0 are the weights the engine started with."""
        ...

    @property
    def num_unfinished(self) -> int:
        """Requests submitted and not yet returned."""
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """Withdraw unfinished requests; what they have sampled is lost."""
        ...

    def abort_all(self) -> None:
        """Withdraw every unfinished request."""
        ...

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Replace all weights and forget everything computed with the old ones.

        Unfinished requests go on with the new weights from their next token; what they have
        sampled stays, and `SampledAnswer.versions` says who sampled what.

        Raises:
            EngineError: the weights do not fit; the engine then refuses to sample until a
                complete set has arrived.
        """
        ...

    def prompt_logprobs(self, token_ids: Sequence[int]) -> FloatArray:
        """float32[T-1], log p(token t | tokens before t) at temperature 1, for t ≥ 1."""
        ...

    def shutdown(self) -> None:
        """Free the engine's memory."""
        ...
