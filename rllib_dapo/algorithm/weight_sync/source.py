"""The learner's weights as a stream: whole tensors, one at a time, as an engine wants them.

A sharded model is gathered tensor by tensor, so that beside its slices a GPU never holds more
than one whole tensor. Gathering is a collective call, so every learner goes through the stream
at the same pace.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rllib_dapo.errors import EngineError
from rllib_dapo.model.lora_state import LoRALayout, merged_state
from rllib_dapo.rollout.engine.checksums import checksum


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """What is known of a tensor before it is gathered; vLLM's `ParamMeta` has the same fields."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class LearnerWeights:
    """vLLM's `WeightSource` over the language model of a learner.

    The names are those of `state_dict()`, tied ones included, because an engine keeps an output
    head of its own even where the model's head is its embedding. With LoRA adapters the names
    are those of the plain model, and the weights are the sums W + s·B·A.

    Args:
        causal_lm: the language model, whole or sharded.
        adapters: where LoRA's adapters are; None if the model has none.
        dtype: the format in which floating-point weights are sent; None sends them as they are.
    """

    def __init__(
        self, causal_lm: Any, adapters: LoRALayout | None, dtype: torch.dtype | None = None
    ) -> None:
        self._causal_lm = causal_lm
        self._adapters = adapters
        self._dtype = dtype

    def metadata(self) -> list[TensorMeta]:
        """Describes what iteration yields, without gathering it."""
        entries = []
        for name, own_name, tensor in self._names():
            dtype = tensor.dtype
            if name != own_name and name.endswith(".weight"):  # merged in at least float32
                dtype = torch.promote_types(dtype, torch.float32)
            entries.append(TensorMeta(name, self._sent_as(dtype), tuple(tensor.shape)))
        return entries

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Yields (name, whole tensor); every learner must go on to the end."""
        state = self._state()
        with torch.no_grad():
            for name, own_name, tensor in self._names():
                whole = _whole(tensor)
                if name != own_name and name.endswith(".weight"):
                    whole = self._merged(own_name, whole, state)
                yield name, whole.detach().to(self._sent_as(whole.dtype))

    def _state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self._causal_lm.state_dict(keep_vars=True)
        return state

    def _names(self) -> Iterator[tuple[str, str, Tensor]]:
        """Yields (name in the plain model, name in this model, tensor), without LoRA's A and B."""
        adapters = self._adapters
        for own_name, tensor in self._state().items():
            if adapters is None:
                yield own_name, own_name, tensor
                continue
            layer, is_base, leaf = own_name.rpartition(".base_layer.")
            if is_base and layer in adapters.layers:
                yield f"{layer}.{leaf}", own_name, tensor
            elif own_name not in adapters.shapes:
                yield own_name, own_name, tensor

    def _merged(self, own_name: str, weight: Tensor, state: dict[str, Tensor]) -> Tensor:
        """W + s·B·A for one layer."""
        assert self._adapters is not None  # noqa: S101 - other names exist with adapters only
        layer = own_name.removesuffix(".base_layer.weight")
        layers = {layer: self._adapters.layers[layer]}
        one = LoRALayout(self._adapters.rank, self._adapters.scaling, layers)
        parts = {own_name: weight} | {name: _whole(state[name]) for name in one.shapes}
        return merged_state(parts, one)[f"{layer}.weight"]

    def _sent_as(self, dtype: torch.dtype) -> torch.dtype:
        return self._dtype if self._dtype is not None and dtype.is_floating_point else dtype


class CheckedPass:
    """One pass through a source that always gets to its end, because other learners wait for it.

    The thread that sends may still be running after the transfer was given up. Therefore each
    tensor is gathered by one thread only, in the order of the other learners, and after `finish` no
    thread gets another one.

    Args:
        source: the weights, which are iterated once.
        with_checksums: compute a checksum of each tensor that is sent.

    Attributes:
        checksums: by name, for the tensors sent so far.
    """

    def __init__(self, source: LearnerWeights, *, with_checksums: bool) -> None:
        self._source = source
        self._with_checksums = with_checksums
        self._tensors = iter(source)
        self._lock = threading.Lock()
        self._over = False
        self.checksums: dict[str, int] = {}

    def metadata(self) -> list[TensorMeta]:
        """The source's."""
        return self._source.metadata()

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the rest of the pass.

        Raises:
            EngineError: `finish` was called.
        """
        while (item := self._next()) is not None:
            name, tensor = item
            if self._with_checksums:
                self.checksums[name] = checksum(tensor)
            yield name, tensor

    def _next(self) -> tuple[str, Tensor] | None:
        with self._lock:
            if self._over:
                raise EngineError("this transfer was given up")
            return next(self._tensors, None)

    def finish(self) -> None:
        """Gather the rest, together with the other learners, and drop it."""
        with self._lock:
            self._over = True
            for _ in self._tensors:
                pass


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
