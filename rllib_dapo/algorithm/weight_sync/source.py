"""The learner's weights as a stream: whole tensors, one at a time, as an engine wants them.

A sharded model is gathered tensor by tensor, so beside its slices a GPU holds the largest of
them only. Every learner goes through the stream at the same pace; to gather is a collective
call.
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
    """What is known of a tensor before it is made; vLLM's `ParamMeta` has the same fields."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class LearnerWeights:
    """vLLM's `WeightSource` over the language model of a learner.

    Names are those of `state_dict()`, tied ones included: an engine keeps a head of its own
    even where the model's is its embedding. With adapters the names are the plain model's and
    the weights the sums W + s·B·A.

    Args:
        causal_lm: whole or sharded.
        adapters: where LoRA's adapters are; None: the model has none.
        dtype: what floating-point weights are sent as; None: as they are.
    """

    def __init__(
        self, causal_lm: Any, adapters: LoRALayout | None, dtype: torch.dtype | None = None
    ) -> None:
        self._causal_lm = causal_lm
        self._adapters = adapters
        self._dtype = dtype

    def metadata(self) -> list[TensorMeta]:
        """What iteration yields; nothing is gathered for it."""
        entries = []
        for name, own_name, tensor in self._names():
            dtype = tensor.dtype
            if name != own_name and name.endswith(".weight"):  # merged in at least float32
                dtype = torch.promote_types(dtype, torch.float32)
            entries.append(TensorMeta(name, self._sent_as(dtype), tuple(tensor.shape)))
        return entries

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors by name; every learner must go on to the end."""
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
        """Name in the plain model, name in this model, tensor; adapters' own ones left out."""
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
        """W + s·B·A of one layer."""
        assert self._adapters is not None  # noqa: S101 - only such layers have other names
        layer = own_name.removesuffix(".base_layer.weight")
        layers = {layer: self._adapters.layers[layer]}
        one = LoRALayout(self._adapters.rank, self._adapters.scaling, layers)
        parts = {own_name: weight} | {name: _whole(state[name]) for name in one.shapes}
        return merged_state(parts, one)[f"{layer}.weight"]

    def _sent_as(self, dtype: torch.dtype) -> torch.dtype:
        return self._dtype if self._dtype is not None and dtype.is_floating_point else dtype


class CheckedPass:
    """One pass through a source, which can be gone through to its end whatever happens.

    A thread that sends may have been given up and still be at it: each tensor is gathered by
    one thread only, in the order of the other learners, and whoever comes after `finish` gets
    none.

    Args:
        source: to iterate once.
        with_checksums: note the checksum of each tensor that goes out.
    """

    def __init__(self, source: LearnerWeights, *, with_checksums: bool) -> None:
        self._source = source
        self._with_checksums = with_checksums
        self._tensors = iter(source)
        self._lock = threading.Lock()
        self._over = False
        self.checksums: dict[str, int] = {}

    def metadata(self) -> list[TensorMeta]:
        """As the source's."""
        return self._source.metadata()

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """What is left of the pass.

        Raises:
            EngineError: the pass was finished elsewhere.
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
        """Go through what is left, for the other learners that gather it too."""
        with self._lock:
            self._over = True
            for _ in self._tensors:
                pass


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
