"""What is exported is the trained policy, in a form that other tools load."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import peft
import pytest
import torch
from learners import learner_config, make_learner, update
from ray.rllib.core import COMPONENT_LEARNER, DEFAULT_MODULE_ID
from reference_model import answer_logprobs
from strategies import rows_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllib_dapo.algorithm.export import export_adapter, export_model
from rllib_dapo.errors import SettingError

pytestmark = pytest.mark.usefixtures("one_thread")


def trained(model: Path, batch: Any, **settings: Any) -> tuple[Any, Any]:
    """A learner after a few updates, and what stands for its algorithm."""
    learner = make_learner(model, lr=0.01, **settings)
    for _ in range(3):
        update(learner, batch)
    group = SimpleNamespace(
        get_state=lambda components, inference_only: {
            COMPONENT_LEARNER: learner.get_state(
                components=components.removeprefix(f"{COMPONENT_LEARNER}/"),
                inference_only=inference_only,
            )
        }
    )
    return learner, SimpleNamespace(config=learner_config(model, **settings), learner_group=group)


def logprobs(model: Any, batch: Any) -> np.ndarray[Any, Any]:
    return np.concatenate([answer_logprobs(model, p, a) for p, a, *_ in rows_of(batch) if a])


@pytest.mark.parametrize("lora", [{}, {"lora_rank": 4}], ids=["all weights", "lora"])
def test_an_exported_model_is_the_trained_policy(tiny_model, policy, batch, tmp_path, lora):
    learner, algorithm = trained(tiny_model, batch, **lora)
    folder = export_model(algorithm, tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    own = learner._logprobs(batch, learner.module[DEFAULT_MODULE_ID].forward_train)
    assert logprobs(loaded, batch) == pytest.approx(own, abs=1e-4)
    assert np.abs(logprobs(policy, batch) - own).max() > 1e-2
    assert AutoTokenizer.from_pretrained(folder).get_vocab()
    assert not any("lora" in name for name in loaded.state_dict())


def test_an_exported_adapter_makes_the_base_model_the_trained_policy(tiny_model, batch, tmp_path):
    learner, algorithm = trained(tiny_model, batch, lora_rank=4)
    folder = export_adapter(algorithm, tmp_path / "adapter")
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    loaded = peft.PeftModel.from_pretrained(base, folder).eval()
    own = learner._logprobs(batch, learner.module[DEFAULT_MODULE_ID].forward_train)
    assert logprobs(loaded, batch) == pytest.approx(own, abs=1e-4)


def test_a_run_without_adapters_has_none_to_export(tiny_model, tmp_path):
    algorithm = SimpleNamespace(config=learner_config(tiny_model))
    with pytest.raises(SettingError, match="use export_model"):
        export_adapter(algorithm, tmp_path)
