"""A `TokenBatch` in a file, for looking at what broke an update."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np

from rllib_dapo.types import TokenBatch


def save_token_batch(batch: TokenBatch, path: Path) -> Path:
    """Write a batch as NumPy's `.npz`: one array per field, no pickle.

    Returns:
        The absolute path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, **{f.name: getattr(batch, f.name) for f in fields(batch)})
    return path.resolve()


def load_token_batch(path: Path) -> TokenBatch:
    """Read what `save_token_batch` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        return TokenBatch(**{field.name: arrays[field.name] for field in fields(TokenBatch)})
