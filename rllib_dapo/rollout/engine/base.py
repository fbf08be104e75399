"""The interface of an inference engine.

An engine takes requests (one prompt, n completions), is stepped by its owner, and hands back
each request when all its completions are done. It has no thread of its own: its owner decides
when it computes. Every completion has a random stream of its own, so neither what else runs
beside it nor the runner that samples it changes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rllib_dapo.types import FinishReason, FloatArray, IntArray, VersionStarts


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are sampled; these are the only sampling parameters.

    Attributes:
        temperature: 0 is greedy.
        top_p: nucleus mass; 1 keeps the whole distribution.
        max_tokens: the longest completion, in tokens.
    """

    temperature: float
    top_p: float
    max_tokens: int


def stream_seed(*entropy: int) -> int:
    """A seed for `InferenceEngine.submit`; other inputs give completions with other streams."""
    (word,) = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    return int(word >> np.uint64(2))  # so that the seed plus n stays below 2^63


@dataclass(frozen=True, slots=True)
class SampledCompletion:
    """One completion as the engine sampled it.

    Attributes:
        token_ids: int64[T], the token that ended the completion included, if one did.
        logprobs: float32[T], in nats, under the distribution that was sampled from.
        finish_reason: see `FinishReason`.
        versions: which weights sampled which tokens, see `VersionStarts`.
    """

    token_ids: IntArray
    logprobs: FloatArray
    finish_reason: FinishReason
    versions: VersionStarts = ()


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request with all of its n completions, in the engine's own order of sampling."""

    request_id: str
    completions: tuple[SampledCompletion, ...]


class InferenceEngine(Protocol):
    """A text generator whose weights can be replaced."""

    capacity: int
    """How many completions it computes at once; more wait in its queue."""

    def submit(
        self, request_id: str, prompt: Sequence[int], n: int, sampling: Sampling, *, seed: int
    ) -> None:
        """Queue a request for n completions of one prompt.

        Args:
            request_id: comes back with the completions; no request in flight may have it.
            prompt: token ids.
            n: how many completions, 1 or more.
            sampling: how to sample.
            seed: completion i has the random stream of `seed + i`.
        """
        ...

    def step(self) -> list[FinishedRequest]:
        """Compute one token of every running completion; return the requests now complete.

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
    def num_in_flight(self) -> int:
        """How many requests are in flight: submitted and not yet returned."""
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """Withdraw requests in flight; what they have sampled is lost."""
        ...

    def abort_all(self) -> None:
        """Withdraw every request in flight."""
        ...

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Replace all weights, and forget everything computed with the old ones.

        Requests in flight go on with the new weights from their next token. What they have
        sampled stays, and `SampledCompletion.versions` says which weights sampled it.

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
