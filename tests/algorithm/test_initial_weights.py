"""A run that starts from the weights of a checkpoint, and from nothing else of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from learners import parameters
from scripted_engine import NO_MODEL, mixed, scripted_runner

from rllib_dapo.algorithm.dapo import DAPO, DAPOConfig
from rllib_dapo.errors import SettingError
from rllib_dapo.settings.run import RunSettings

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("ray_session")]


def config(model: Path | str, **settings: Any) -> DAPOConfig:
    small = {
        "model": str(model),
        "group_size": 4,
        "groups_per_batch": 4,
        "minibatch_size": 8,
        "warmup_iterations": 0,
        "progress": "off",
        **NO_MODEL,
    }
    return (
        DAPOConfig()
        .environment("rllib_dapo/Arithmetic-v0")
        .env_runners(env_runner_cls=scripted_runner(mixed))
        .update_from_dict({**small, **settings})
    )


@pytest.fixture
def build(tiny_model, request):
    def build_algorithm(**settings: Any) -> Any:
        algorithm = config(tiny_model, **settings).build_algo()
        request.addfinalizer(algorithm.stop)
        return algorithm

    return build_algorithm


@pytest.fixture(scope="module", params=[{}, {"lora_rank": 2}], ids=["all weights", "lora"])
def checkpoint(request, tiny_model, tmp_path_factory, ray_session):
    """The settings of a trained run, its weights and its checkpoint."""
    algorithm = config(tiny_model, lr=1e-2, **request.param).build_algo()
    algorithm.train()
    path = algorithm.save_to_path(tmp_path_factory.mktemp("run") / "checkpoint")
    weights = parameters(algorithm.learner_group._learner).clone()
    algorithm.stop()
    return request.param, weights, path


def test_only_the_weights_come_from_the_checkpoint(build, checkpoint):
    settings, trained, path = checkpoint
    fresh = parameters(build(**settings).learner_group._learner)
    algorithm = build(restore_weights_from=path, max_completion_length=32, **settings)
    learner = algorithm.learner_group._learner
    assert torch.equal(parameters(learner), trained)
    assert not torch.equal(fresh, trained)
    (optimizer,) = learner._optimizer_parameters
    assert not optimizer.state_dict()["state"]
    assert algorithm.iteration == 0
    result = algorithm.train()
    assert result["training_iteration"] == 1
    assert result["env_runners"]["problem_stream_position"] == 4


def test_a_checkpoint_of_such_a_run_does_without_the_first_one(build, checkpoint, tmp_path):
    settings, _, path = checkpoint
    algorithm = build(restore_weights_from=path, **settings)
    algorithm.train()
    weights = parameters(algorithm.learner_group._learner).clone()
    saved = algorithm.save_to_path(tmp_path / "second")
    restored = DAPO.from_checkpoint(saved)
    try:
        assert restored.config.restore_weights_from is None
        assert torch.equal(parameters(restored.learner_group._learner), weights)
    finally:
        restored.stop()


def refusal(settings: RunSettings) -> str:
    with pytest.raises(SettingError) as caught:
        settings.validate()  # type: ignore[attr-defined]
    return str(caught.value)


def test_another_architecture_is_refused_before_anything_starts(checkpoint):
    settings, _, path = checkpoint
    message = refusal(config("embedded", restore_weights_from=path, **settings))
    if settings:
        assert "lora_" in message
    else:
        assert "another architecture than model='embedded'" in message
        assert "restore_weights_from" in message


def test_adapters_and_whole_models_are_told_apart(checkpoint, tiny_model):
    settings, _, path = checkpoint
    other = {} if settings else {"lora_rank": 2}
    message = refusal(config(tiny_model, restore_weights_from=path, **other))
    assert "restore_weights_from" in message
    assert ("holds adapters only" if settings else "give that folder as `model`") in message


def test_a_folder_that_is_no_checkpoint_is_refused_with_the_remedy(checkpoint, tiny_model):
    _, _, path = checkpoint
    for folder, words in (
        ("/nowhere/at/all", "there is no such folder"),
        (str(tiny_model), "give it as `model` instead"),
        (str(Path(path).parent), f"for instance {path}"),
        (7, "give the folder of a checkpoint"),
    ):
        assert words in refusal(config(tiny_model, restore_weights_from=folder))


def test_a_file_that_would_run_code_is_not_read(checkpoint, tiny_model, tmp_path):
    import os
    import pickle

    from rllib_dapo.algorithm.initial_weights import _STATE

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    file = tmp_path / "evil" / _STATE
    file.parent.mkdir(parents=True)
    file.write_bytes(pickle.dumps(Evil()))
    message = refusal(config(tiny_model, restore_weights_from=str(tmp_path / "evil")))
    assert "not only arrays" in message
    assert not (tmp_path / "ran").exists()
