"""Finds the model that a name means, and reads its configuration files and tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rllib_dapo.errors import SettingError

EMBEDDED = "embedded"


def model_path(name: str) -> str:
    """Return the folder (or hub id) that a `model` setting names.

    Raises:
        SettingError: the name looks like a folder that does not exist.
    """
    if name == EMBEDDED:
        return str(Path(__file__).parent / "embedded")
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path.resolve())
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if looks_like_path or not name:
        raise SettingError(
            f"model={name!r}: there is no such folder. Give `embedded`, a folder with a "
            "config.json, or a hub id such as `Qwen/Qwen2.5-0.5B`.",
            "model",
        )
    return name


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known about a model without loading its weights.

    Attributes:
        path: folder or hub id.
        context_length: the most tokens of prompt plus completion, or None if the
            configuration does not say.
        stop_token_ids: every id that ends a completion, the tokenizer's and the generation
            config's (chat models often have two).
        pad_token_id: the id that fills short rows; the loss never reads it.
    """

    path: str
    context_length: int | None
    stop_token_ids: tuple[int, ...]
    pad_token_id: int


@lru_cache(maxsize=8)
def load_tokenizer(path: str, *, trust_remote_code: bool) -> Any:
    """Load the tokenizer of a model.

    Raises:
        SettingError: it cannot be loaded.
    """
    from transformers import AutoTokenizer

    return _load(AutoTokenizer, path, trust_remote_code)


@lru_cache(maxsize=8)
def load_config(path: str, *, trust_remote_code: bool) -> Any:
    """Load the transformers configuration of a model, which callers must not change.

    Raises:
        SettingError: it cannot be loaded.
    """
    from transformers import AutoConfig

    return _load(AutoConfig, path, trust_remote_code)


@lru_cache(maxsize=8)
def model_facts(name: str, *, trust_remote_code: bool) -> ModelFacts:
    """Read a model's configuration files.

    Raises:
        SettingError: there is no such model, or no token ends its completions.
    """
    from transformers import GenerationConfig

    path = model_path(name)
    config = load_config(path, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(path, trust_remote_code=trust_remote_code)
    try:
        generation_eos = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:  # Many folders have no generation config.
        generation_eos = None
    except (ValueError, TypeError) as error:  # transformers could not load the model either
        raise SettingError(
            f"model={name!r}: its generation_config.json is not valid: {error} Mend the file in "
            "the model's folder, or remove it.",
            "model",
        ) from error
    stops = _ids(tokenizer.eos_token_id) | _ids(generation_eos)
    if not stops:
        raise SettingError(
            f"model={name!r}: its tokenizer has no EOS token and its generation config names "
            "none, so no completion could ever end; set eos_token in tokenizer_config.json",
            "model",
        )
    pad = tokenizer.pad_token_id
    return ModelFacts(
        path=path,
        context_length=getattr(config, "max_position_embeddings", None),
        stop_token_ids=tuple(sorted(stops)),
        pad_token_id=int(pad if pad is not None else min(stops)),
    )


def _ids(value: Any) -> set[int]:
    """Return token ids as a set; configurations hold none, one or a list."""
    if value is None:
        return set()
    return {int(v) for v in (value if isinstance(value, (list, tuple)) else [value])}


def _load(auto_class: Any, path: str, trust_remote_code: bool) -> Any:
    """Call `from_pretrained`, and turn its errors into one with a remedy."""
    try:
        return auto_class.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise SettingError(
            f"model={path!r} cannot be loaded: {first_line} Give `embedded`, a folder with "
            "config.json and tokenizer files, or a hub id that this machine can reach.",
            "model",
        ) from error
