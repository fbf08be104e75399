"""A stand-in for `vllm.LLM` that writes down what it is asked to do."""

from __future__ import annotations

from typing import Any

from rllib_dapo.rollout.engine.served_weights import ReceivedTensor


class RecordingLLM:
    """Records calls about weights and memory; `fails` names one that raises.

    It has "received" whatever was in the last update, so that updates look complete.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails: str | None = None
        self._received = {
            "a": ReceivedTensor((2,), None),
            "b": ReceivedTensor((3,), None),
        }

    @property
    def llm_engine(self) -> RecordingLLM:
        return self

    def set_weight_version(self, version: str) -> None:
        pass

    def collective_rpc(self, method: str, args: Any = ()) -> list[Any]:
        return [dict(self._received)] if method == "received_weights" else [None]

    def _record(self, call: str) -> None:
        if self.fails is not None and call.startswith(self.fails):
            raise RuntimeError("as planned")
        self.calls.append(call)

    def sleep(self, level: int, mode: str) -> None:
        self._record(f"sleep {level} {mode}")

    def wake_up(self, tags: list[str]) -> None:
        self._record(f"wake_up {tags}")

    def start_weight_update(self) -> None:
        self._record("start_weight_update")

    def update_weights(self, request: Any) -> None:
        self._record("update_weights")

    def finish_weight_update(self, weight_version: str) -> None:
        self._record(f"finish_weight_update {weight_version}")

    def reset_prefix_cache(self, reset_running_requests: bool) -> None:
        self._record(f"reset_prefix_cache {reset_running_requests}")
