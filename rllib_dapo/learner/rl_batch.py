"""A `TokenBatch` in the clothes that RLlib's Learner API asks for, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
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
    # The first column gives RLlib the number of rows; the others may be ragged.
    columns = {"prompt_lengths": batch.prompt_lengths}
    columns |= {name: getattr(batch, name) for name in _FIELDS}
    return MultiAgentBatch({DEFAULT_MODULE_ID: SampleBatch(columns)}, env_steps=len(batch))


def from_multi_agent_batch(batch: MultiAgentBatch | Mapping[str, Any]) -> TokenBatch:
    """Unwrap what `to_multi_agent_batch` made, or its `policy_batches`."""
    policies = batch.policy_batches if isinstance(batch, MultiAgentBatch) else batch
    columns = policies[DEFAULT_MODULE_ID]
    return TokenBatch(**{name: np.asarray(columns[name]) for name in _FIELDS})
