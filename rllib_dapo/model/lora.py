"""LoRA (arXiv 2106.09685): train small adapters beside frozen weights.

    h = W·x + s·B·A·x        s = alpha / rank, A [rank, in], B [out, rank], B = 0 at first

peft puts the adapters into the model in place, so every layer keeps its name. `lora_state`
says which tensors a model then has, and makes the plain model's weights of them.
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


def add_lora(
    causal_lm: nn.Module,
    *,
    rank: int,
    alpha: float,
    target_modules: Literal["all-linear"] | Sequence[str] = "all-linear",
    seed: int | None = None,
) -> LoRALayout:
    """Freeze a model and put trainable adapters into it, in place.

    The model computes what it did before until the first optimizer step, as B is 0. There is
    no dropout. Embeddings and the output head are left alone.

    Args:
        causal_lm: a transformers model, not yet sharded.
        rank: of the adapters, at least 1.
        alpha: s · rank, above 0. With alpha = 2 · rank as usual, s = 2.
        target_modules: `all-linear`, or names of linear layers: the last part of a name
            (`q_proj`) for all layers called so, or a whole name.
        seed: of A, which is drawn uniformly as `nn.Linear` draws it. All learners need the
            same one. None draws from PyTorch's global generator.

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
        # peft sets it per layer, with a warning if this says otherwise
        fan_in_fan_out=all(layer.transposed for layer in layers.values()),
        task_type="CAUSAL_LM",
        base_model_name_or_path=getattr(causal_lm, "name_or_path", None),
    )
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        peft.inject_adapter_in_model(config, causal_lm, adapter_name=ADAPTER)
    return LoRALayout(rank, alpha / rank, layers)


def check_lora(
    model_config: Any,
    *,
    rank: int,
    alpha: float,
    target_modules: Literal["all-linear"] | Sequence[str] = "all-linear",
) -> None:
    """Refuse what `add_lora` would refuse, without loading the model's weights.

    Args:
        model_config: the transformers configuration.
        rank: see `add_lora`, as all that follow.
        alpha: see above.
        target_modules: see above.

    Raises:
        SettingError: as `add_lora`.
    """
    from transformers import AutoModelForCausalLM

    check_value("lora_rank", rank)
    check_value("lora_alpha", alpha)
    _import_peft()
    with torch.device("meta"):  # names and shapes only
        _targets(AutoModelForCausalLM.from_config(model_config), target_modules)


@contextmanager
def adapters_off(causal_lm: nn.Module) -> Iterator[None]:
    """Within this context the model is its frozen base: a reference policy for free.

    For forward passes whose backward pass, if there is one, has run before the context ends:
    gradient checkpointing would compute the layers again with adapters.

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
        # peft has frozen the adapters, too: what is trained must not depend on this context.
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
    """Write an adapter folder as peft knows it.

    The folder gets `adapter_config.json` and `adapter_model.safetensors`; load it with
    `peft.PeftModel.from_pretrained(base, folder)`.

    Args:
        causal_lm: a model with adapters.
        folder: made if it is not there.
        layout: what `add_lora` returned.
        state: the tensors, where the model's own are sharded; it may hold others too.
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
    """Load peft, which is an extra."""
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
    """All layers an adapter can be put on: linear ones except the output head."""
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
    """The layers a setting names, in the model's order."""
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
