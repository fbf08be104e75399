"""A Ray actor with a real vLLM engine on the embedded model, and ways to break it."""

from __future__ import annotations

import os
import sys
import time
from operator import attrgetter
from typing import Any

import gloo_transport
import ipc_transport
import ray
from gloo_transport import use_gloo
from ipc_transport import use_shared_memory
from ray import cloudpickle

from rllib_dapo.rollout.engine.base import Sampling

# Workers do not know this folder.
cloudpickle.register_pickle_by_value(gloo_transport)
cloudpickle.register_pickle_by_value(ipc_transport)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

PROMPT = [12, 5, 7, 9, 11]


@ray.remote(num_cpus=0, max_restarts=3, max_task_retries=0)
class EngineActor:
    def __init__(self, model: str, **settings: Any) -> None:
        import torch

        from rllib_dapo.rollout.engine.vllm import VLLMEngine

        torch.set_num_threads(1)
        self.engine = VLLMEngine(
            model, dtype="float32", max_model_len=128, stop_token_ids=[1], seed=0, **settings
        )
        use_gloo()
        use_shared_memory()
        self._plan: dict[str, str] = {}

    def call_engine(self, method: str, *arguments: Any) -> Any:
        plan = self._plan.pop(method, None)
        if plan == "die":
            os._exit(1)
        if plan is not None and plan.startswith("/"):
            while os.path.exists(plan):
                time.sleep(0.1)
            raise RuntimeError("as planned")
        if plan == "raise":
            raise RuntimeError("as planned")
        return attrgetter(method)(self.engine)(*arguments)

    def plan(self, method: str, what: str) -> None:
        """What the next call of a method is to do instead: a file's name, hang while it exists."""
        self._plan[method] = what

    def tamper(self, how: str) -> None:
        """Change tensors of the next update on their way into the engine."""
        from rllib_dapo.rollout.engine import transfer_engine

        original = transfer_engine.RecordingModel.load_weights

        def load_weights(model: Any, weights: Any) -> Any:
            transfer_engine.RecordingModel.load_weights = original
            changed = [(name, tensor.clone()) for name, tensor in weights]
            if how == "one element":
                changed[0][1].view(-1)[5] += 1e-3
            return original(model, changed)

        transfer_engine.RecordingModel.load_weights = load_weights

    def sample(self, seed: int = 0) -> tuple[list[int], list[float], Any]:
        """An answer, its log-probabilities, and which weights sampled it."""
        self.engine.submit("x", PROMPT, 1, Sampling(1.0, 1.0, 16), seed=seed)
        finished = []
        while self.engine.num_in_flight:
            finished += self.engine.step()
        (answer,) = finished[0].completions
        return answer.token_ids.tolist(), answer.logprobs.tolist(), answer.versions

    def attribute(self, name: str) -> Any:
        return attrgetter(name)(self.engine)
