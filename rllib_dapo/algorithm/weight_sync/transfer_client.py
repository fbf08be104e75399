"""vLLM's calls to the inference side of a weight transfer, made to runners from a learner.

vLLM's trainer-side engine drives the whole update through these calls. In a broadcast all
runners wait for each other, so the first one that fails ends it. By CUDA IPC each runner reads
for itself: one that fails is left out of the next calls, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rllib_dapo.errors import EngineError
from rllib_dapo.model.device import Place
from rllib_dapo.rollout.runner_calls import CallFailure, CallResults, wait_for_calls


@dataclass(frozen=True, slots=True)
class Receiver:
    """A runner that takes part in transfers.

    Attributes:
        handle: Ray's actor handle.
        places: where its engine's workers compute; a restart changes them.
    """

    handle: Any = field(compare=False)  # stays the same when the process is restarted
    places: tuple[Place, ...]


class TransferClient:
    """vLLM's `VLLMWeightSyncClient` over several runners.

    Args:
        transport: a key of `engine.transfer_engine.REMOTE_TRANSPORTS`.
        receivers: the runners by number.
        timeout_s: a runner that takes longer for one call has failed, in seconds.
        end_broadcast: called when a runner fails in a broadcast: the sender and all other
            runners wait for it, until this function ends the broadcast.
    """

    def __init__(
        self,
        transport: str,
        receivers: Mapping[int, Receiver],
        timeout_s: float,
        end_broadcast: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._receivers = dict(receivers)
        self._timeout_s = timeout_s
        self._end_broadcast = end_broadcast
        self._is_broadcast = transport == "nccl"
        self._version = 0
        self._checksums: dict[str, int] | None = None
        self._failures: dict[int, CallFailure] = {}
        self._finished: dict[int, Any] = {}

    @property
    def results(self) -> CallResults:
        """Who has finished the update, and why the other runners have not."""
        return CallResults(self._finished, self._failures)

    def begin(self, version: int, checksums: dict[str, int] | None) -> None:
        """Name the update that is to come.

        Args:
            version: the version of its weights.
            checksums: filled while tensors are sent, compared at the end; None checks nothing.
        """
        self._version, self._checksums = version, checksums

    # -- What vLLM calls --------------------------------------------------------------------

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Let the runners join; each of their workers has a rank of its own in the group."""
        arguments, offset = {}, init_info.get("rank_offset", 0)
        for runner, receiver in self._receivers.items():
            own = {"rank_offset": offset} if "rank_offset" in init_info else {}
            arguments[runner] = (self._transport, {**init_info, **own})
            offset += len(receiver.places)
        self._call("weights.init_transfer", arguments)

    def start_weight_update(self) -> None:
        """Have the runners stop sampling."""
        self._call_all("weights.start", self._checksums is not None)

    def update_weights(self, update_info: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Have the runners receive one piece; returns when they have all of it."""
        self._call_all("weights.receive", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Have the runners check what arrived, and serve it."""
        if torch.cuda.is_available():  # an engine on this GPU takes its cache's memory again now
            torch.cuda.empty_cache()
        arguments = (self._version, self._checksums)
        results = self._wait("weights.finish", dict.fromkeys(self._receivers, arguments))
        self._finished = results.values

    def _call_all(self, method: str, *arguments: Any) -> None:
        self._call(method, dict.fromkeys(self._receivers, arguments))

    def _call(self, method: str, arguments: Mapping[int, Sequence[Any]]) -> None:
        """Call the runners that have not failed.

        Raises:
            EngineError: a runner of a broadcast failed, and the broadcast was ended.
        """
        self._wait(method, arguments, until_failure=self._is_broadcast)
        if self._failures and self._is_broadcast:
            self._end_broadcast()
            raise EngineError(
                "; ".join(f"runner {r}: {f.reason}" for r, f in sorted(self._failures.items()))
            )

    def _wait(
        self, method: str, arguments: Mapping[int, Sequence[Any]], *, until_failure: bool = False
    ) -> CallResults:
        calls = {
            runner: receiver.handle.call_engine.remote(method, *arguments[runner])
            for runner, receiver in self._receivers.items()
            if runner not in self._failures
        }
        results = wait_for_calls(calls, timeout_s=self._timeout_s, until_failure=until_failure)
        self._failures |= results.failures
        return results
