"""vLLM's calls to the inference side of a weight transfer, made to runners from the learner.

vLLM's trainer-side engine drives the whole update through these calls. A runner that fails in
one of them is noted and left out of the next; the others go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rllib_dapo.algorithm.weight_sync.interface import Answers
from rllib_dapo.algorithm.weight_sync.runners import call_engines, collect
from rllib_dapo.model.device import Place


@dataclass(frozen=True, slots=True)
class Member:
    """A runner that takes part in transfers.

    Attributes:
        handle: Ray's actor handle.
        places: where its engine's workers compute; others after a restart.
    """

    handle: Any = field(compare=False)  # the same for the process after a restart
    places: tuple[Place, ...]


def is_group(transport: str) -> bool:
    """Whether all runners must take part at the same time, and wait for each other."""
    return transport != "cuda_ipc"


class RunnersLost(Exception):  # noqa: N818 - a notice, dealt with where it is caught
    """A broadcast would wait, or does, for runners that are gone."""


class RunnerClient:
    """vLLM's `VLLMWeightSyncClient` over several runners.

    Args:
        transport: a key of `engine.weights.REMOTE_TRANSPORTS`.
        members: the runners by number.
        timeout_s: a runner that takes longer for one call has failed.
        on_lost: called when a runner fails in the middle of a broadcast, which then waits for
            it, as all others do: to end it.
    """

    def __init__(
        self,
        transport: str,
        members: Mapping[int, Member],
        timeout_s: float,
        on_lost: Callable[[], None],
    ) -> None:
        self.on_lost = on_lost
        self._transport = transport
        self._members = dict(members)
        self._timeout_s = timeout_s
        self._is_group = is_group(transport)
        self._version = 0
        self._checksums: dict[str, int] | None = None
        self.failures: dict[int, str] = {}
        """Why runners left the transfer, by runner."""
        self.lost: set[int] = set()
        """Of those, the runners that are dead or silent."""
        self._failed = threading.Event()

    @property
    def serving(self) -> list[int]:
        """Runners that have not failed."""
        return [runner for runner in self._members if runner not in self.failures]

    def wait_for_failure(self, seconds: float) -> bool:
        """Wait until a runner has failed; False if none does in time."""
        return self._failed.wait(seconds)

    def begin(self, version: int, checksums: dict[str, int] | None) -> None:
        """Name the update that is to come.

        Args:
            version: of its weights.
            checksums: filled while tensors are sent, compared at the end; None: no check.
        """
        self._version, self._checksums = version, checksums

    # -- What vLLM calls --------------------------------------------------------------------

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Let the runners join. Each of their workers has a rank of its own in the group."""
        offset = init_info.get("rank_offset", 0)
        calls = {}
        for runner, member in self._members.items():
            arguments = dict(init_info)
            if "rank_offset" in init_info:
                arguments["rank_offset"] = offset
                offset += len(member.places)
            calls[runner] = member.handle.call_engine.remote(
                "weights.init_transfer", self._transport, arguments
            )
        self._note(collect(calls, timeout_s=self._timeout_s))

    def start_weight_update(self) -> None:
        """Stop sampling.

        Raises:
            RunnersLost: a runner of a group does not answer.
        """
        self._call("weights.start", self._checksums is not None)
        if self.failures and self._is_group:
            raise RunnersLost

    def update_weights(self, update_info: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Receive; returns when the runners have all of this piece.

        Raises:
            RunnersLost: a runner of a group failed; `on_lost` was called before.
        """
        self._call("weights.receive", update_info, until_failure=self._is_group)
        if self.failures and self._is_group:
            self.on_lost()
            raise RunnersLost

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Check and serve."""
        if torch.cuda.is_available():  # an engine on this GPU takes its cache's memory again now
            torch.cuda.empty_cache()
        self._call("weights.finish", self._version, self._checksums)

    def _call(self, method: str, *arguments: Any, until_failure: bool = False) -> None:
        handles = {runner: self._members[runner].handle for runner in self.serving}
        answers = call_engines(
            handles,
            method,
            *arguments,
            timeout_s=self._timeout_s,
            until_failure=until_failure,
        )
        self._note(answers)

    def _note(self, answers: Answers) -> None:
        self.failures |= answers.failures
        self.lost |= answers.lost
        if self.failures:
            self._failed.set()
