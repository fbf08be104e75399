"""Parts of a run around a weight sync: an engine without vLLM, runners, one learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from learners import learner_config
from reference_model import answer_logprobs, embedded_model

from rllib_dapo.algorithm.weight_sync.checks import SyncChecks
from rllib_dapo.algorithm.weight_sync.sync import WeightSync
from rllib_dapo.envs.make import make_env
from rllib_dapo.errors import EngineError
from rllib_dapo.model.device import Place, place_of
from rllib_dapo.rollout.runner_calls import CallFailure, CallResults, RunnerCalls

ENV = "rllib_dapo/Arithmetic-v0"


class EngineInside:
    """A runner, as far as a sync is concerned."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def call_engine(self, method: str, *arguments: Any) -> Any:
        return attrgetter(method)(self.engine)(*arguments)


class RunnerGroup:
    """As much of RLlib's group as `RemoteCalls.call` uses; actors by number."""

    def __init__(self, actors: Mapping[int, Any]) -> None:
        self._actors = dict(actors)
        self.lost: set[int] = set()
        self._worker_manager = self

    def healthy_worker_ids(self) -> list[int]:
        return [number for number in self._actors if number not in self.lost]

    def actors(self) -> dict[int, Any]:
        return self._actors

    def set_actor_state(self, number: int, *, healthy: bool) -> None:
        assert not healthy
        self.lost.add(number)


class PlainEngine:
    """An engine that is the model in transformers; `tamper` changes a set before it is loaded."""

    def __init__(self, tamper: Any = None) -> None:
        self.model = type(embedded_model())(embedded_model().config).eval()
        self.model.load_state_dict(embedded_model().state_dict())
        self.head = self.model.lm_head.weight.detach().clone()  # its own, as vLLM's
        self.version, self.refusal, self.checksums = 0, None, None
        self.tamper = tamper or (lambda weights: weights)

    @property
    def weights(self) -> PlainEngine:
        return self

    def places(self) -> list[Place]:
        return [place_of("cpu")]

    def load_weights(self, weights: Any, version: int, checksums: Any = None) -> None:
        weights = self.tamper({name.removeprefix("causal_lm."): w for name, w in weights.items()})
        state = {name: torch.as_tensor(np.array(w)) for name, w in weights.items()}
        if "lm_head.weight" in state:
            self.head = state.pop("lm_head.weight")
        self.model.load_state_dict(state, strict=False)
        self.version, self.checksums = version, checksums

    def prompt_logprobs(self, token_ids: Sequence[int]) -> Any:
        self.model.lm_head.weight = torch.nn.Parameter(self.head)
        values = answer_logprobs(self.model, token_ids[:1], token_ids[1:]).astype(np.float32)
        self.model.lm_head.weight = self.model.model.embed_tokens.weight
        return values

    def reject(self, reason: str) -> None:
        self.refusal = reason


class DirectCalls(RunnerCalls):
    """Calls to engines in this process by number, without Ray; an engine may refuse."""

    def __init__(self, engines: Mapping[int, Any]) -> None:
        self.engines = dict(engines)

    def alive(self) -> list[int]:
        return list(self.engines)

    def handles(self) -> dict[int, Any]:
        return {}

    def call(self, runners: Sequence[int], method: str, *arguments: Any) -> CallResults:
        results = CallResults()
        for runner in runners:
            try:
                engine = EngineInside(self.engines[runner])
                results.values[runner] = getattr(engine, method)(*arguments)
            except EngineError as error:
                results.failures[runner] = CallFailure(str(error))
        return results


def weight_sync(transport: Any, calls: RunnerCalls, *, interval: int = 1) -> WeightSync:
    """A sync that is checked each time, or as often as `interval` says."""
    return WeightSync(transport, SyncChecks(interval), calls)


def selected_sync(learner_group: Any, calls: RunnerCalls, **settings: Any) -> WeightSync:
    """The sync that a run has which is configured for these learners."""
    return WeightSync.select(learner_config("embedded", **settings), learner_group, calls)


def local_learners(model: Any = "embedded", **settings: Any) -> Any:
    """RLlib's learner group with one learner in this process."""
    return learner_config(model, **settings).build_learner_group(env=make_env(ENV))


def language_model(learner_group: Any) -> Any:
    """What the local learner trains."""
    from ray.rllib.core import DEFAULT_MODULE_ID

    return learner_group._learner.module[DEFAULT_MODULE_ID].causal_lm


def step(learner_group: Any, *, scale: float = 1e-2, seed: int = 0) -> None:
    """Move all weights a little, as an update would, and count the version up."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in language_model(learner_group).parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    learner_group._learner._weights_seq_no += 1
