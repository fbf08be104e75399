"""What is exported is the trained policy, in a form that other tools load."""

from __future__ import annotations

import json
import shutil
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

from rllib_dapo.algorithm.export import check_export, export_adapter, export_model
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


@pytest.mark.parametrize(
    "written",
    [
        {"do_sample": False, "temperature": 0.7},
        {"do_sample": False, "top_p": 0.9, "top_k": 20},
        {"num_beams": 1, "length_penalty": 2.0, "early_stopping": True},
        {"do_sample": True, "temperature": 0.6, "eos_token_id": [1, 2]},
        {"temperature": 0.0},
    ],
    ids=str,
)
def test_whatever_generation_config_a_model_came_with_is_kept(tiny_model, tmp_path, written):
    base = shutil.copytree(tiny_model, tmp_path / "base")
    file = base / "generation_config.json"
    file.write_text(json.dumps(written), encoding="utf-8")
    config = learner_config(base)
    check_export(config)
    learner = make_learner(base)
    group = SimpleNamespace(
        get_state=lambda components, inference_only: {
            COMPONENT_LEARNER: learner.get_state(
                components=components.removeprefix(f"{COMPONENT_LEARNER}/"),
                inference_only=inference_only,
            )
        }
    )
    folder = export_model(SimpleNamespace(config=config, learner_group=group), tmp_path / "out")
    assert (folder / file.name).read_text(encoding="utf-8") == file.read_text(encoding="utf-8")
    assert AutoModelForCausalLM.from_pretrained(folder)


def test_a_model_that_could_not_be_exported_is_refused_at_the_start(
    tiny_model, tmp_path, monkeypatch
):
    base = shutil.copytree(tiny_model, tmp_path / "base")
    config = learner_config(base)

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no such thing")

    tokenizer = type(AutoTokenizer.from_pretrained(base))
    monkeypatch.setattr(tokenizer, "save_pretrained", fail)
    with pytest.raises(SettingError, match="its tokenizer again: no such thing") as caught:
        config.validate()
    assert caught.value.setting == "model"


def test_a_generation_config_that_transformers_does_not_load_is_refused(tiny_model, tmp_path):
    base = shutil.copytree(tiny_model, tmp_path / "base")
    (base / "generation_config.json").write_text('{"num_return_sequences": 4}', encoding="utf-8")
    with pytest.raises(SettingError, match=r"generation_config\.json is not valid") as caught:
        learner_config(base).validate()
    assert caught.value.setting == "model"
