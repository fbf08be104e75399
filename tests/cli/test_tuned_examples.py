"""Every example file loads, and what needs no download is a possible configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from rllib_dapo.algorithm.dapo import DAPOConfig
from rllib_dapo.cli.check import validate
from rllib_dapo.cli.examples import example_files
from rllib_dapo.cli.experiment_file import load_experiments

FOLDER = Path(__file__).parents[2] / "tuned_examples"
FILES = sorted(FOLDER.rglob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_key_of_every_example_is_known(path: Path) -> None:
    for experiment in load_experiments(path):
        DAPOConfig().update_from_dict(dict(experiment.config))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_examples_of_the_embedded_model_are_possible(path: Path) -> None:
    for experiment in load_experiments(path):
        if experiment.config.get("model") == "embedded":
            assert validate(experiment)


def test_the_command_finds_them() -> None:
    assert {path.stem for path in FILES} == {path.stem for path in example_files().values()}


def test_the_baseline_has_all_five_parts_off() -> None:
    (experiment,) = load_experiments(FOLDER / "grpo_baseline.yaml")
    config = DAPOConfig().update_from_dict(dict(experiment.config))
    assert config.clip_high == config.clip_low
    assert not config.dynamic_sampling
    assert config.loss_aggregation == "sequence_mean"
    assert not config.overlong_filtering
    assert not config.soft_overlong_punishment


def test_the_papers_file_has_the_papers_numbers() -> None:
    (experiment,) = load_experiments(FOLDER / "dapo_qwen2.5_32b_aime.yaml")
    wanted = {
        "lr": 1e-6, "warmup_iterations": 20, "weight_decay": 0.1, "grad_clip": 1.0,
        "groups_per_batch": 512, "group_size": 16, "minibatch_size": 512, "clip_low": 0.2,
        "clip_high": 0.28, "max_completion_length": 16384 + 4096, "soft_overlong_cache": 4096,
        "evaluation_samples": 32, "evaluation_temperature": 1.0, "evaluation_top_p": 0.7,
    }  # fmt: skip
    assert {key: experiment.config[key] for key in wanted} == wanted
