"""Weights straight from the learners' GPUs to the engines', by NCCL or CUDA IPC."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, Literal

import torch

from rllib_dapo.algorithm.weight_sync.checks import SyncChecks
from rllib_dapo.algorithm.weight_sync.confirm import confirm
from rllib_dapo.algorithm.weight_sync.interface import Answers, Runners, SyncReport
from rllib_dapo.algorithm.weight_sync.learners import ask_learners
from rllib_dapo.algorithm.weight_sync.runner_client import Member
from rllib_dapo.algorithm.weight_sync.sender import Sent, send_weights

_ATTEMPTS = 3


class TransferSync:
    """The transports `nccl` and `cuda_ipc`.

    Runners may come and go between syncs: each sync asks all of them first where they are,
    and connects anew if that has changed.

    Args:
        transport: which.
        learner_group: RLlib's.
        checks: when and how closely a sync is checked.
        timeout_s: for a whole transfer.
        dtype: what weights are sent as; None: float32, as the learner has them. The engine's
            own format halves what travels and changes nothing that it keeps.
    """

    def __init__(
        self,
        transport: Literal["nccl", "cuda_ipc"],
        learner_group: Any,
        checks: SyncChecks,
        *,
        timeout_s: float,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.transport = transport
        self._learner_group = learner_group
        self._checks = checks
        self._timeout_s = timeout_s
        self._dtype = dtype

    def send(self, runners: Runners) -> SyncReport:
        """Bring the learner's weights into the engines and wait until they serve.

        Raises:
            EngineError: no runner could take them, or a broadcast hangs: then all of them
                have to be started again.
            TrainingError: a learner is lost.
        """
        with_checks = self._checks.due()
        failures: dict[int, str] = {}
        times: Counter[int] = Counter()
        lost: set[int] = set()
        sent = Sent(-1, [], {}, set(), None)
        for _ in range(_ATTEMPTS):
            there = runners.call("places")
            failures |= there.failures
            lost |= there.lost
            members = self._members(runners, there, times)
            if not members:
                break
            send = partial(
                send_weights,
                transport=self.transport,
                members=members,
                timeout_s=self._timeout_s,
                with_checks=with_checks,
                dtype=self._dtype,
            )
            sent = next(s for s in ask_learners(self._learner_group, send) if s is not None)
            failures |= sent.failures
            lost |= sent.lost
            times.update(list(sent.failures))
            if sent.served:
                break
        failed = {runner: why for runner, why in failures.items() if runner not in sent.served}
        loaded = Answers(dict.fromkeys(sent.served), failed, lost & failed.keys())
        return confirm(runners, loaded, sent.version, sent.probe, self._checks)

    def _members(self, runners: Runners, there: Answers, times: Counter[int]) -> dict[int, Member]:
        """Runners that answer; who failed once may have been torn along, twice is the cause."""
        handles = runners.handles()
        return {
            runner: Member(handles[runner], tuple(places))
            for runner, places in there.values.items()
            if times[runner] < 2
        }

    def send_again(self, runners: Runners) -> SyncReport | None:
        """None: nothing is kept, and the learner may be ahead by now."""
        return None
