"""A start from the weights of a checkpoint, and from nothing else of it.

`restore` continues a run: optimizer, problem stream, buffer and iteration come from the
checkpoint. `restore_weights_from` starts a new one, whose policy begins with those weights.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from ray.rllib.core import (
    COMPONENT_LEARNER,
    COMPONENT_LEARNER_GROUP,
    COMPONENT_RL_MODULE,
    DEFAULT_MODULE_ID,
)

from rllib_dapo.errors import SettingError, refuse
from rllib_dapo.model.causal_lm import load_causal_lm
from rllib_dapo.model.facts import model_path
from rllib_dapo.model.lora import add_lora, lora_options
from rllib_dapo.model.lora_state import check_adapter_state
from rllib_dapo.settings.run import RunSettings
from rllib_dapo.types import CAUSAL_LM_PREFIX

_NAME = "restore_weights_from"
_STATE = Path(
    COMPONENT_LEARNER_GROUP,
    COMPONENT_LEARNER,
    COMPONENT_RL_MODULE,
    DEFAULT_MODULE_ID,
    "module_state.pkl",
)
# Larger files are first read by the learners, which compare names and shapes as well.
_LARGEST_CHECKED = 4 * 2**30


def check_initial_weights(config: RunSettings) -> None:
    """Check that the checkpoint is there and holds weights of this run's model.

    Raises:
        SettingError: it is not a checkpoint, or the weights are those of another model or of
            other adapters.
    """
    if config.restore_weights_from is None or config.in_evaluation:
        return
    path = _state_file(config.restore_weights_from)
    if path.stat().st_size <= _LARGEST_CHECKED:
        _check_shapes(config, _shapes(str(path), path.stat().st_mtime_ns))


def load_initial_weights(learner_group: Any, folder: str) -> None:
    """Give every learner the weights of a checkpoint; the optimizer stays as it is.

    Args:
        learner_group: a `DAPOLearnerGroup`.
        folder: the setting `restore_weights_from`; each learner reads it.
    """
    path = str(_state_file(folder))

    def load(learner: Any) -> None:
        learner.module[DEFAULT_MODULE_ID].set_state(_read(path))

    for result in learner_group.foreach_learner(load):
        result.get()


def _state_file(folder: str) -> Path:
    """The file with the weights.

    Raises:
        SettingError: the folder is missing, or is no checkpoint.
    """
    root = Path(folder).expanduser().absolute()
    if (root / _STATE).is_file():
        return root / _STATE
    if not root.is_dir():
        refuse(_NAME, folder, "there is no such folder; give the folder of a checkpoint")
    if (root / "config.json").is_file():
        refuse(_NAME, folder, "this is a Hugging Face folder; give it as `model` instead")
    found = (*root.glob(f"*/{_STATE}"), *root.glob(f"*/*/{_STATE}"))
    inside = sorted(path.parents[len(_STATE.parts) - 1] for path in found)
    hint = f", for instance {inside[-1]}" if inside else ""
    refuse(
        _NAME,
        folder,
        "this is not a checkpoint of DAPO; give the folder that contains rllib_checkpoint.json"
        + hint,
    )


def _check_shapes(config: RunSettings, shapes: Mapping[str, Any]) -> None:
    """Compare the checkpoint's weights with those that this run trains."""
    adapters = any(".lora_" in name for name in shapes)
    if adapters and config.lora_rank is None:
        _refuse(config, "the checkpoint holds adapters only; set `lora_rank` and the `model` of "
                "the run that saved it")  # fmt: skip
    if not adapters and config.lora_rank is not None:
        _refuse(config, "the checkpoint holds a whole model and this run trains adapters; export "
                "it with export_model and give that folder as `model`")  # fmt: skip
    model = load_causal_lm(
        model_path(config.language_model),
        trust_remote_code=config.trust_remote_code,
        gradient_checkpointing=False,
        weights=False,
    )
    if config.lora_rank is not None:
        layout = add_lora(model, **lora_options(config))
        check_adapter_state(shapes, layout)
        return
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in sorted(own.keys() | shapes.keys()):
        there = shapes[name].shape if name in shapes else None
        if there != own.get(name):
            _refuse(
                config,
                f"the checkpoint is of another architecture than model={config.language_model!r}: "
                f"{name} is {_size(there)} in the checkpoint and {_size(own.get(name))} here; set "
                "the `model` of the run that saved it",
            )


def _size(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else " x ".join(map(str, shape))


def _refuse(config: RunSettings, remedy: str) -> NoReturn:
    refuse(_NAME, config.restore_weights_from, remedy)


class _Shape:
    """Stands for an array of which only the shape is kept."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


@lru_cache(maxsize=2)
def _shapes(path: str, changed: int) -> Mapping[str, Any]:
    """The shapes of a checkpoint's weights, by the language model's own names."""
    return {
        name.removeprefix(CAUSAL_LM_PREFIX): _Shape(tuple(array.shape))
        for name, array in _read(path).items()
    }


class _ArraysOnly(pickle.Unpickler):
    """Reads a file of arrays, and runs no other code that a pickle could name."""

    def find_class(self, module: str, name: str) -> Any:
        """Pickle's hook."""
        if module.partition(".")[0] in ("numpy", "collections", "_codecs"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it holds {module}.{name} and not only arrays")


def _read(path: str) -> dict[str, Any]:
    """The weights in a file.

    Raises:
        SettingError: the file cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            state = _ArraysOnly(file).load()
        return dict(state)
    except (OSError, EOFError, ValueError, TypeError, pickle.UnpicklingError) as error:
        raise SettingError(f"{_NAME}: {path} cannot be read: {error}", _NAME) from error
