"""The tensors of a model with LoRA adapters, and the plain model's weights.

Where the plain model has `L.weight`, peft's model has `L.base_layer.weight` (W, frozen),
`L.lora_A.default.weight` (A) and `L.lora_B.default.weight` (B). The engine gets the plain
model's weights. They are computed from the frozen W each time, and nothing is added to W in
place, so rounding errors cannot accumulate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rllib_dapo.errors import SettingError

ADAPTER = "default"
"""peft's name of an adapter without a name."""

_A, _B = f"lora_A.{ADAPTER}.weight", f"lora_B.{ADAPTER}.weight"


@dataclass(frozen=True, slots=True)
class AdaptedLayer:
    """One linear layer with an adapter.

    Attributes:
        in_features: width of x.
        out_features: width of h.
        transposed: whether W is stored as [in, out] (GPT-2's `Conv1D`), not as [out, in].
    """

    in_features: int
    out_features: int
    transposed: bool


@dataclass(frozen=True, slots=True)
class LoRALayout:
    """Where the adapters of a model are.

    Attributes:
        rank: the rank of A and B.
        scaling: s = alpha / rank.
        layers: the adapted layers by their names in the plain model.
    """

    rank: int
    scaling: float
    layers: Mapping[str, AdaptedLayer]

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """The shapes of all trained tensors, by name."""
        shapes = {}
        for name, layer in self.layers.items():
            shapes[f"{name}.{_A}"] = (self.rank, layer.in_features)
            shapes[f"{name}.{_B}"] = (layer.out_features, self.rank)
        return shapes


def merged_state(state: Mapping[str, Tensor], layout: LoRALayout) -> dict[str, Tensor]:
    """Compute the plain model's weights W + s·B·A, under its own names and in its order.

    ```
    L.weight = L.base_layer.weight + s · L.lora_B · L.lora_A      (transposed for Conv1D)
    ```

    Args:
        state: all tensors of a model with adapters (`state_dict()`, or gathered from its
            slices), without a prefix. They are not changed.
        layout: what `add_lora` returned.

    Returns:
        What `state_dict()` of the plain model would hold, tied names included. Merged
        weights are new tensors in float32 (float64 where W is); all others are the same
        objects as in `state`.

    Raises:
        KeyError: the state lacks an adapter or an adapted layer.
    """
    _require_all(state, layout)
    adapters = layout.shapes
    merged = {}
    for name, tensor in state.items():
        layer_name, is_base, leaf = name.rpartition(".base_layer.")
        if is_base and layer_name in layout.layers:
            plain = f"{layer_name}.{leaf}"
            merged[plain] = _merged(state, layer_name, layout) if leaf == "weight" else tensor
        elif name not in adapters:
            merged[name] = tensor
    return merged


def adapter_state(state: Mapping[str, Tensor], layout: LoRALayout) -> dict[str, Tensor]:
    """Return only the trained tensors of a state, for small checkpoints.

    Args:
        state: all tensors of a model with adapters.
        layout: what `add_lora` returned.

    Raises:
        KeyError: the state lacks one of them.
    """
    return {name: state[name] for name in layout.shapes}


def check_adapter_state(state: Mapping[str, Tensor], layout: LoRALayout) -> None:
    """Refuse to load adapters whose names or shapes differ from this model's.

    Args:
        state: what `adapter_state` returned for the model that was saved.
        layout: the layout of the model to load into.

    Raises:
        SettingError: names or shapes differ.
    """
    expected = layout.shapes
    missing, unexpected = sorted(expected.keys() - state), sorted(state.keys() - expected)
    if missing or unexpected:
        raise SettingError(
            "lora_target_modules: the checkpoint has other adapters than this run (missing "
            f"{some_of(missing)}; unexpected {some_of(unexpected)}). Use the setting of the run "
            "that saved it.",
            "lora_target_modules",
        )
    for name, shape in expected.items():
        if tuple(state[name].shape) != shape:
            raise SettingError(
                f"lora_rank={layout.rank}: the checkpoint's {name} is {list(state[name].shape)}, "
                f"not {list(shape)}. Use the lora_rank and the model of the run that saved it.",
                "lora_rank",
            )


def _merged(state: Mapping[str, Tensor], name: str, layout: LoRALayout) -> Tensor:
    """Return W + s·B·A of one layer, in at least float32."""
    weight = state[f"{name}.base_layer.weight"].detach()
    dtype = torch.promote_types(weight.dtype, torch.float32)
    a, b = (state[f"{name}.{part}"].detach().to(dtype) for part in (_A, _B))
    change = b @ a
    if layout.layers[name].transposed:
        change = change.t()
    return torch.add(weight.to(dtype), change, alpha=layout.scaling)


def _require_all(state: Mapping[str, Tensor], layout: LoRALayout) -> None:
    """Refuse a state without some of its adapters, which would merge to a wrong model."""
    needed = [*layout.shapes, *(f"{name}.base_layer.weight" for name in layout.layers)]
    missing = [name for name in needed if name not in state]
    if missing:
        raise KeyError(f"not a complete state of a model with adapters: no {some_of(missing)}")


def some_of(names: Sequence[str]) -> str:
    """Return at most three of the names, and how many there are beside them."""
    rest = len(names) - 3
    return ", ".join(map(repr, names[:3])) + (f" and {rest} more" if rest > 0 else "") or "none"
