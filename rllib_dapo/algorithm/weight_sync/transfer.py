"""Weights straight from the learners' GPUs to the engines', by NCCL or CUDA IPC."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from rllib_dapo.algorithm.weight_sync.learners import ask_first_learner, ask_learners
from rllib_dapo.algorithm.weight_sync.object_store import ObjectStoreTransport
from rllib_dapo.algorithm.weight_sync.sender import connect_learner, send_weights
from rllib_dapo.algorithm.weight_sync.transfer_client import Receiver
from rllib_dapo.algorithm.weight_sync.transport import Delivery, TransportName
from rllib_dapo.errors import EngineError
from rllib_dapo.rollout.runner_calls import CallResults, RunnerCalls

logger = logging.getLogger(__name__)


class TransferTransport:
    """The transports `nccl` and `cuda_ipc`.

    Runners may come and go between syncs. Each sync first asks all of them where they are, and
    connects anew if that has changed. If a transfer fails, which a runner that dies in the
    middle is enough for, this sync goes through the object store instead.

    Args:
        transport: `nccl` or `cuda_ipc`.
        learner_group: RLlib's.
        timeout_s: how long a whole transfer may take, in seconds.
        dtype: the format in which weights are sent; None sends the learner's float32. The
            engine's own format halves what travels and changes nothing that the engine keeps.
    """

    def __init__(
        self,
        transport: TransportName,
        learner_group: Any,
        *,
        timeout_s: float,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.name = transport
        self._learner_group = learner_group
        self._timeout_s = timeout_s
        self._dtype = dtype
        self._connected: dict[int, Receiver] | None = None
        self._by_store: ObjectStoreTransport | None = None  # served the last sync

    def send(self, calls: RunnerCalls, runners: Sequence[int], *, with_checks: bool) -> Delivery:
        """Bring the learner's weights into the engines; see `Transport.send`."""
        self._by_store = None
        there = calls.call_engines(runners, "places")
        failures = dict(there.failures)
        try:
            delivery = self._transfer(calls, there, with_checks)
        except EngineError as error:
            logger.error("%s. This sync goes through the object store instead", error)
            self._connected = None
            # A broadcast ends for all its runners when one dies: ask which ones are left.
            left = calls.call_engines(list(there.values), "places")
            failures |= left.failures
            self._by_store = ObjectStoreTransport(self._learner_group)
            delivery = self._by_store.send(calls, list(left.values), with_checks=with_checks)
        else:
            if delivery.results.failures:  # such a runner may have left the group
                self._connected = None
        failures |= delivery.results.failures
        return replace(delivery, results=CallResults(delivery.results.values, failures))

    def _transfer(self, calls: RunnerCalls, there: CallResults, with_checks: bool) -> Delivery:
        """Send to the runners that have said where they are."""
        if not there.values:
            raise EngineError("no runner answers")
        handles = calls.handles()
        receivers = {
            runner: Receiver(handles[runner], tuple(places))
            for runner, places in there.values.items()
        }
        if receivers != self._connected:
            self._connected = None
            ask_learners(
                self._learner_group,
                partial(
                    connect_learner,
                    transport=self.name,
                    receivers=receivers,
                    timeout_s=self._timeout_s,
                ),
            )
            self._connected = receivers
        return ask_first_learner(
            self._learner_group,
            partial(send_weights, with_checks=with_checks, dtype=self._dtype),
        )

    def send_again(self, calls: RunnerCalls, runners: Sequence[int]) -> Delivery | None:
        """Bring the weights of the last `send` to runners that have lost them.

        Returns:
            None unless the last `send` went through the object store: a transfer keeps nothing,
            and the learner may be ahead by now.
        """
        return None if self._by_store is None else self._by_store.send_again(calls, runners)
