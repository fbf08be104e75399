"""A trained policy as a folder that transformers or peft loads."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from torch import Tensor
from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME
from transformers.utils.hub import cached_file

from rllib_dapo.errors import SettingError
from rllib_dapo.model.facts import load_config, load_tokenizer, model_path
from rllib_dapo.model.lora import add_lora, lora_options, save_adapter
from rllib_dapo.settings.run import RunSettings
from rllib_dapo.types import CAUSAL_LM_PREFIX


def export_model(algorithm: Any, folder: Path | str) -> Path:
    """Write the trained model and its tokenizer as a Hugging Face folder, in float32.

    Adapters are added into the weights; shards are gathered.

    Args:
        algorithm: a `DAPO`, trained or restored.
        folder: made if it is not there.

    Returns:
        The folder.
    """
    config = algorithm.config
    model = _plain_model(config)
    model.load_state_dict(_state(algorithm, inference_only=True))
    # transformers refuses to write some of the generation configs that it reads, for instance one
    # with a temperature for greedy decoding. The file of the base model is kept as it is.
    model.generation_config = GenerationConfig()
    model.save_pretrained(folder)
    if (written := _generation_config(model_path(config.language_model))) is not None:
        (Path(folder) / GENERATION_CONFIG_NAME).write_bytes(written)
    _tokenizer(config).save_pretrained(folder)
    return Path(folder)


def check_export(config: RunSettings) -> None:
    """Check at the start that what stands beside the weights can be written at the end.

    Raises:
        SettingError: transformers reads the model's configuration or its tokenizer, but cannot
            write it.
    """
    _rehearse(model_path(config.language_model), config.trust_remote_code)


@lru_cache(maxsize=8)
def _rehearse(path: str, trust_remote_code: bool) -> None:
    """Write the configuration and the tokenizer of a model into a folder that is thrown away."""
    parts = {
        "config.json": load_config(path, trust_remote_code=trust_remote_code),
        "its tokenizer": load_tokenizer(path, trust_remote_code=trust_remote_code),
    }
    for name, part in parts.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                part.save_pretrained(folder)
            except Exception as error:  # Whatever it is, it would come again at the end.
                raise SettingError(
                    f"model={path!r}: the trained model could not be exported, because "
                    f"transformers cannot write {name} again: {error}. Mend the file in the "
                    "model's folder",
                    "model",
                ) from error


def export_adapter(algorithm: Any, folder: Path | str) -> Path:
    """Write the trained adapter as a peft folder.

    Args:
        algorithm: a `DAPO` with `lora_rank`.
        folder: made if it is not there.

    Returns:
        The folder.

    Raises:
        SettingError: the run trains all weights.
    """
    config = algorithm.config
    if config.lora_rank is None:
        raise SettingError(
            "lora_rank=None: this run trains all weights and has no adapter; use export_model",
            "lora_rank",
        )
    model = _plain_model(config)
    layout = add_lora(model, **lora_options(config))
    save_adapter(model, folder, layout, _state(algorithm, inference_only=False))
    _tokenizer(config).save_pretrained(folder)
    return Path(folder)


def _plain_model(config: RunSettings) -> Any:
    """The untrained model as it came, its configuration included."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        model_path(config.language_model),
        dtype=torch.float32,
        trust_remote_code=config.trust_remote_code,
    )


def _generation_config(path: str) -> bytes | None:
    """The generation config of a folder or hub id as it was written, or None without one."""
    found = cached_file(
        path,
        GENERATION_CONFIG_NAME,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if found is None else Path(found).read_bytes()


def _tokenizer(config: RunSettings) -> Any:
    path = model_path(config.language_model)
    return load_tokenizer(path, trust_remote_code=config.trust_remote_code)


def _state(algorithm: Any, *, inference_only: bool) -> dict[str, Tensor]:
    """The learners' weights by the language model's own names."""
    state = algorithm.learner_group.get_state(
        components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}", inference_only=inference_only
    )[COMPONENT_LEARNER][COMPONENT_RL_MODULE][DEFAULT_MODULE_ID]
    return {
        name.removeprefix(CAUSAL_LM_PREFIX): torch.tensor(array) for name, array in state.items()
    }
