"""Converts a `TokenBatch` to RLlib's batch and back, and writes it to a file and reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

from rllib_dapo.types import TokenBatch

_FIELDS = tuple(field.name for field in fields(TokenBatch))


def to_multi_agent_batch(batch: TokenBatch) -> MultiAgentBatch:
    """Wrap a batch for `LearnerGroup.update(batch=…)`; nothing is copied.

    Rows are completions, so RLlib's counts of trained "steps" count completions.
    """
    # RLlib takes the number of rows from the first column; the others may be ragged.
    columns = {"prompt_lengths": batch.prompt_lengths}
    columns |= {name: getattr(batch, name) for name in _FIELDS}
    return MultiAgentBatch({DEFAULT_MODULE_ID: SampleBatch(columns)}, env_steps=len(batch))


def from_multi_agent_batch(batch: MultiAgentBatch | Mapping[str, Any]) -> TokenBatch:
    """Unwrap what `to_multi_agent_batch` returned, or its `policy_batches`."""
    policies = batch.policy_batches if isinstance(batch, MultiAgentBatch) else batch
    columns = policies[DEFAULT_MODULE_ID]
    return TokenBatch(**{name: np.asarray(columns[name]) for name in _FIELDS})


def save_token_batch(batch: TokenBatch, path: Path) -> Path:
    """Write a batch in NumPy's `.npz` format, without pickle: one array for each field.

    Returns:
        The absolute path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, **{name: getattr(batch, name) for name in _FIELDS})
    return path.resolve()


def load_token_batch(path: Path) -> TokenBatch:
    """Read a file that `save_token_batch` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        return TokenBatch(**{name: arrays[name] for name in _FIELDS})
