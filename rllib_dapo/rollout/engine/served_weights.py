"""Which weights a vLLM engine serves, and whether it may: every update goes through here.

    start -> receive (once, or piece by piece) -> finish: compared with what was sent -> serves

From `start` on the engine's weights are a mixture. They serve again only after `finish` has
found a complete set. An update that fails, or whose sender dies, leaves the engine refusing to
sample until a complete set has arrived.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllib_dapo.errors import EngineError
from rllib_dapo.rollout.engine.shared_tensors import shared_tensors
from rllib_dapo.types import CAUSAL_LM_PREFIX

Shapes = Mapping[str, tuple[int, ...]]

_DISAGREE = "Does `model` name the same model for engine and learner?"
_MIXTURE = (
    "the last weight update did not finish, so the engine's weights are a mixture; load a "
    "complete set of weights before sampling"
)
_ASLEEP = "the engine sleeps and has given up its weights; load a complete set before sampling"


@dataclass(frozen=True, slots=True)
class ReceivedTensor:
    """One tensor of an update, as it arrived in a worker and before it was loaded.

    Attributes:
        shape: the tensor's shape.
        checksum: see `engine.checksums`; None where this update is not checked.
    """

    shape: tuple[int, ...]
    checksum: int | None


class ServedWeights:
    """The weights of a `vllm.LLM`.

    Args:
        llm: vLLM's engine, with our weight transfer engine and worker extension.
        own_processes: True if its workers are processes of their own (tensor parallelism), so
            that tensors go to them through shared memory.

    Attributes:
        version: the version of the weights that serve.
        updating: True while an update is in flight that may still succeed; sampling waits for it.
        refusal: why these weights must not serve, or None.
    """

    def __init__(self, llm: Any, *, own_processes: bool) -> None:
        self._llm = llm
        self._own_processes = own_processes
        self._shapes: Shapes | None = None  # of the first complete set, by name
        self._asleep: list[str] = []  # vLLM's names of the memory that it has given up
        self.version = 0
        self.updating = False
        self.refusal: str | None = None
        llm.llm_engine.set_weight_version("0")

    def require_usable(self) -> None:
        """Refuse to sample from weights that are not one complete version.

        Raises:
            EngineError: the last update failed, or is in flight, or the engine sleeps.
        """
        if self.refusal is not None:
            raise EngineError(self.refusal)
        if self._asleep:
            raise EngineError("the engine sleeps: call `wake_up` before sampling")

    # -- An update, in one call or step by step ---------------------------------------------

    def load(
        self, weights: Mapping[str, Any], version: int, checksums: Mapping[str, int] | None
    ) -> None:
        """Replace all weights by those of this process; see `InferenceEngine.load_weights`.

        Args:
            weights: arrays or tensors by name, with or without the RLModule's prefix.
            version: the version that these weights get.
            checksums: by name without the prefix; None does not check.
        """
        tensors = [
            (name.removeprefix(CAUSAL_LM_PREFIX), _tensor(value)) for name, value in weights.items()
        ]
        with self._step_of_update(version):
            self._begin()
            self._check_shapes({name: tuple(tensor.shape) for name, tensor in tensors}, version)
            self.start(checksums is not None)
            if self._own_processes:
                with shared_tensors(tensors) as segment:
                    self._update({"shared": segment})
                    self.finish(version, checksums)
            else:
                self._update({"weights": tensors})
                self.finish(version, checksums)

    def init_transfer(self, transport: str, arguments: Mapping[str, Any]) -> None:
        """Make a transport ready; see `engine.transfer_engine.TransportInitInfo`."""
        info = {"transport": transport, "arguments": dict(arguments)}
        self._llm.init_weight_transfer_engine({"init_info": info})

    def start(self, with_checksums: bool) -> None:
        """Begin an update: nothing is sampled from now on.

        Args:
            with_checksums: compute checksums of what arrives, for `finish`.
        """
        self._begin()
        with self._step_of_update():
            self._wake("weights")
            self._llm.llm_engine.collective_rpc("prepare_weight_update", args=(with_checksums,))
            self._llm.start_weight_update()

    def receive(self, update: Mapping[str, Any]) -> None:
        """Receive weights, or some of them, by the transport that was made ready."""
        with self._step_of_update():
            self._update({"remote": dict(update)})

    def finish(self, version: int, checksums: Mapping[str, int] | None) -> None:
        """Compare what arrived with what was sent; if they agree, it serves.

        Raises:
            EngineError: tensors are missing, have other shapes, or are not what was sent.
        """
        shapes: Shapes = {}
        with self._step_of_update(version):
            for received in self._llm.llm_engine.collective_rpc("received_weights"):
                shapes = {name: tensor.shape for name, tensor in received.items()}
                self._check_shapes(shapes, version)
                if checksums is not None:
                    _check_checksums(received, checksums, version)
            self._llm.finish_weight_update(weight_version=str(version))
            self._wake("kv_cache")
            # Requests in flight compute their keys and values anew, with the new weights.
            self._llm.reset_prefix_cache(reset_running_requests=True)
        self._shapes = shapes
        self.version = version
        self.updating = False
        self.refusal = None

    def reject(self, reason: str) -> None:
        """Take the weights out of service, because a check found them wrong."""
        self.refusal = reason

    # -- Sleep --------------------------------------------------------------------------------

    def sleep(self, keep_weights: bool) -> None:
        """Give up the memory of the key-value cache and of the weights (vLLM's sleep mode).

        Requests in flight stay, and are computed anew after waking up.

        Args:
            keep_weights: copy the weights to the CPU's memory; otherwise new ones must follow.
        """
        if self._asleep:
            return
        self._llm.sleep(level=1 if keep_weights else 2, mode="keep")
        self._asleep = ["weights", "kv_cache"]
        if not keep_weights:
            self.refusal = self.refusal or _ASLEEP

    def wake_up(self) -> None:
        """Take the memory again.

        After a sleep that did not keep the weights, they are undefined until new ones are loaded.
        """
        self._wake("weights")
        self._wake("kv_cache")

    def _wake(self, part: str) -> None:
        if part in self._asleep:
            self._llm.wake_up(tags=[part])
            self._asleep.remove(part)

    # -- Parts --------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.updating = True
        self.refusal = _MIXTURE

    def _update(self, update: Mapping[str, Any]) -> None:
        self._llm.update_weights({"update_info": dict(update)})

    @contextmanager
    def _step_of_update(self, version: int | None = None) -> Iterator[None]:
        """Within, whatever vLLM raises ends the update; the weights stay out of service."""
        which = (
            "new weights did not arrive, or" if version is None else f"weights of version {version}"
        )
        try:
            yield
        except EngineError:
            self.updating = False
            raise
        except Exception as error:
            self.updating = False
            raise EngineError(
                f"{which} do not fit the engine's model: {error}. {_DISAGREE}"
            ) from error

    def _check_shapes(self, shapes: Shapes, version: int) -> None:
        """Refuse weights unlike the first set: vLLM keeps the old ones where some are missing."""
        expected = shapes if self._shapes is None else self._shapes
        if differing := _differing(expected, shapes):
            name = differing[0]
            raise EngineError(
                f"weights of version {version} do not fit the engine's model: {name} has shape "
                f"{shapes.get(name, 'none: it is missing')}, expected "
                f"{expected.get(name, 'no such name')} ({len(differing)} tensors differ). "
                f"{_DISAGREE}"
            )


def _check_checksums(
    received: Mapping[str, ReceivedTensor], sent: Mapping[str, int], version: int
) -> None:
    """Refuse tensors that are not, bit for bit, what the learner sent."""
    arrived = {name: tensor.checksum for name, tensor in received.items()}
    if differing := sorted(_differing(sent, arrived)):
        raise EngineError(
            f"weights of version {version} arrived changed: the checksum of {differing[0]} is "
            f"{arrived.get(differing[0], 'none, it never came')}, the learner sent "
            f"{sent.get(differing[0], 'no such tensor')} ({len(differing)} tensors differ). Use "
            "another `weight_sync`; `object_store` works everywhere"
        )


def _differing(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Names whose values differ, or that only one of the two has."""
    return [n for n in {**expected, **found} if expected.get(n) != found.get(n)]


def _tensor(value: Any) -> Tensor:
    """An array as a tensor over the same memory; tensors pass through."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    with warnings.catch_warnings():
        # Arrays in Ray's object store are read-only; vLLM only reads them.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(np.asarray(value))
