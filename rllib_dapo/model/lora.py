"""LoRA (arXiv 2106.09685): trains small adapters beside frozen weights.

    h = W·x + s·B·A·x        s = alpha / rank, A [rank, in], B [out, rank], B = 0 at first

peft puts the adapters into the model in place, so every layer keeps its name. `lora_state`
describes the tensors of such a model, and computes the plain model's weights from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rllib_dapo.errors import SettingError
from rllib_dapo.model.lora_state import ADAPTER, AdaptedLayer, LoRALayout, adapter_state, some_of
from rllib_dapo.settings.checks import check_value
from rllib_dapo.settings.learner import LearnerSettings


def add_lora(
    causal_lm: nn.Module,
    *,
    rank: int,
    alpha: float,
    target_modules: Literal["all-linear"] | Sequence[str] = "all-linear",
    seed: int | None = None,
) -> LoRALayout:
    """Freeze a model and put trainable adapters into it, in place.

    Until the first optimizer step the model's output does not change, as B is 0. There is no
    dropout. Embeddings and the output head get no adapter.

    Args:
        causal_lm: a transformers model, not yet sharded.
        rank: the rank of the adapters, at least 1.
        alpha: s · rank, above 0. With the usual alpha = 2 · rank, s = 2.
        target_modules: `all-linear`, or names of linear layers: the last part of a name
            (`q_proj`) for all layers with it, or a whole name.
        seed: seeds A, which is drawn uniformly as in `nn.Linear`. All learners need the same
            seed. None draws from PyTorch's global generator.

    Returns:
        Where the adapters are.

    Raises:
        SettingError: rank, alpha or a name is impossible, or peft is not installed.
    """
    check_value("lora_rank", rank)
    check_value("lora_alpha", alpha)
    peft = _import_peft()
    layers = _targets(causal_lm, target_modules)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=list(layers),
        lora_dropout=0.0,
        bias="none",
        # peft sets this for each layer, and warns where it differs from what is given here.
        fan_in_fan_out=all(layer.transposed for layer in layers.values()),
        task_type="CAUSAL_LM",
        base_model_name_or_path=getattr(causal_lm, "name_or_path", None),
    )
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        peft.inject_adapter_in_model(config, causal_lm, adapter_name=ADAPTER)
    return LoRALayout(rank, alpha / rank, layers)


def lora_options(settings: LearnerSettings) -> dict[str, Any]:
    """Return the arguments of `add_lora` and `check_lora` that settings with adapters stand for."""
    return {
        "rank": settings.lora_rank,
        "alpha": settings.lora_alpha,
        "target_modules": settings.lora_target_modules,
    }


def check_lora(
    model_config: Any,
    *,
    rank: int,
    alpha: float,
    target_modules: Literal["all-linear"] | Sequence[str] = "all-linear",
) -> int:
    """Refuse what `add_lora` would refuse, without loading the model's weights.

    Args:
        model_config: the transformers configuration.
        rank: see `add_lora`.
        alpha: see `add_lora`.
        target_modules: see `add_lora`.

    Returns:
        How many parameters the adapters have.

    Raises:
        SettingError: see `add_lora`.
    """
    from transformers import AutoModelForCausalLM

    check_value("lora_rank", rank)
    check_value("lora_alpha", alpha)
    _import_peft()
    with torch.device("meta"):  # names and shapes only
        layers = _targets(AutoModelForCausalLM.from_config(model_config), target_modules)
    return sum(rank * (layer.in_features + layer.out_features) for layer in layers.values())


@contextmanager
def adapters_off(causal_lm: nn.Module) -> Iterator[None]:
    """Turn the adapters off in this context, so that the model is its frozen base.

    The base is the reference policy. The backward pass of a forward pass in this context, if
    there is one, must run before the context ends: gradient checkpointing would compute the
    layers again with adapters.

    Raises:
        ValueError: the model has no adapters, so it would be its own reference.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [m for m in causal_lm.modules() if isinstance(m, BaseTunerLayer)]
    if not layers:
        raise ValueError("adapters_off: the model has no adapters")
    layers = [layer for layer in layers if not layer.disable_adapters]
    trained = [p for p in causal_lm.parameters() if p.requires_grad]
    try:
        for layer in layers:
            layer.enable_adapters(False)
        # peft has also frozen the adapters. This context must not change what is trained.
        for parameter in trained:
            parameter.requires_grad_(True)
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def save_adapter(
    causal_lm: nn.Module,
    folder: Path | str,
    layout: LoRALayout,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Write an adapter folder in peft's format.

    The folder gets `adapter_config.json` and `adapter_model.safetensors`; load it with
    `peft.PeftModel.from_pretrained(base, folder)`.

    Args:
        causal_lm: a model with adapters.
        folder: is created if it does not exist.
        layout: what `add_lora` returned.
        state: the whole tensors where the model's own are sharded; it may hold others, too.
    """
    from safetensors.torch import save_file

    tensors = adapter_state(causal_lm.state_dict() if state is None else state, layout)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    causal_lm.peft_config[ADAPTER].save_pretrained(str(folder))  # type: ignore[union-attr,index]
    plain = {
        f"base_model.model.{name.replace(f'.{ADAPTER}.weight', '.weight')}": t
        for name, t in tensors.items()
    }
    save_file(
        {name: t.detach().cpu().contiguous() for name, t in plain.items()},
        folder / "adapter_model.safetensors",
        metadata={"format": "pt"},
    )


def _import_peft() -> Any:
    """Import peft, which is an optional dependency."""
    try:
        import peft
    except ImportError as error:
        raise SettingError(
            f"lora_rank: peft is needed and cannot be imported ({error}); "
            'pip install "rllib-dapo[lora]"',
            "lora_rank",
        ) from error
    return peft


def _linear_layers(causal_lm: Any) -> dict[str, AdaptedLayer]:
    """Return all layers that can have an adapter: linear ones except the output head."""
    from transformers.pytorch_utils import Conv1D

    head = causal_lm.get_output_embeddings()
    layers = {}
    for name, module in causal_lm.named_modules():
        if module is head:
            continue
        if isinstance(module, nn.Linear):
            layers[name] = AdaptedLayer(module.in_features, module.out_features, transposed=False)
        elif isinstance(module, Conv1D):
            layers[name] = AdaptedLayer(module.nx, module.nf, transposed=True)
    return layers


def _targets(
    causal_lm: nn.Module, target_modules: Literal["all-linear"] | Sequence[str]
) -> dict[str, AdaptedLayer]:
    """Return the layers that a setting names, in the model's order."""
    layers = _linear_layers(causal_lm)
    if target_modules == "all-linear" and layers:
        return layers
    wanted = [target_modules] if isinstance(target_modules, str) else list(target_modules)
    matches = {w: {n for n in layers if n == w or n.endswith(f".{w}")} for w in wanted}
    unknown = [name for name, found in matches.items() if not found]
    if unknown or not wanted:
        there = sorted({name.rpartition(".")[2] for name in layers})
        raise SettingError(
            f"lora_target_modules={target_modules!r}: {type(causal_lm).__name__} has no linear "
            f"layer {some_of(unknown)} that can be adapted. Use 'all-linear' or some of {there}.",
            "lora_target_modules",
        )
    chosen = set().union(*matches.values())
    return {name: layer for name, layer in layers.items() if name in chosen}
