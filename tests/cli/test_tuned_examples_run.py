"""Every shipped experiment file runs to its end with real engines, shrunk by `--set`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_tuned_examples import FILES

from rllib_dapo.cli.experiment_file import load_experiments
from rllib_dapo.cli.flags import Flags, with_flags
from rllib_dapo.cli.run import run_experiments

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("ray_session"),
]

SMALL = [
    "groups_per_batch=2",
    "group_size=8",
    "minibatch_size=8",
    "evaluation_duration=2",
    "evaluation_samples=2",
    "progress=off",
]
# What is not on this machine is replaced: models, data sets and GPUs.
REPLACED = {
    "clip_high": ["clip_high={grid_search: [0.4]}"],
    "dapo_smollm2_cpu": ["model=embedded", "system_prompt=null", "few_shot=[]"],
    "dapo_qwen2.5_32b_aime": [
        "model=embedded",
        "prompt_template=plain",
        "max_prompt_length=32",
        "max_completion_length=32",
        "soft_overlong_cache=8",
        "num_env_runners=0",
        "num_gpus_per_env_runner=0",
        "tensor_parallel_size=1",
        "num_learners=0",
        "num_gpus_per_learner=0",
        "shard_model=false",
        "dtype=float32",
        "compute_dtype=float32",
        "dynamic_sampling=false",  # a strict grader finds few of its answers correct
    ],
}


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    """Settings that put a small file in the place of the paper's data sets."""
    path = tmp_path / "problems.jsonl"
    rows = [{"problem": f"{i}+{i + 1}=?", "answer": str(2 * i + 1)} for i in range(8)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return [f"env_config.dataset={path}", f"evaluation_config.env_config.dataset={path}"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_example_runs_to_its_end(path: Path, tmp_path: Path, data: list[str]) -> None:
    settings = [*SMALL, *REPLACED.get(path.stem, [])]
    if "32b" in path.stem:
        settings += data
    flags = Flags(
        settings=settings, stop='{"training_iteration": 1}', storage_path=str(tmp_path / "results")
    )
    experiments = [with_flags(one, flags) for one in load_experiments(path)]
    for grid in run_experiments(experiments):
        assert not grid.errors
        for result in grid:
            assert result.metrics["training_iteration"] == 1
            columns = (Path(result.path) / "progress.csv").read_text().splitlines()[0]
            assert "evaluation/accuracy" in columns
