"""Sweeps run by Tune to their end: real trials, learners and data around scripted engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import scripted_engine
from ray import cloudpickle
from scripted_engine import NO_MODEL, mixed, scripted_runner

from rllib_dapo.cli.check import validate
from rllib_dapo.cli.experiment_file import Experiment
from rllib_dapo.cli.tuner import to_tuner

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("ray_session"),
]


@pytest.fixture
def sweep(tiny_model, tmp_path):
    """A function that checks and runs an experiment with small sizes."""

    def run(config: dict[str, Any], **keys: Any) -> Any:
        cloudpickle.register_pickle_by_value(scripted_engine)
        small = {
            **NO_MODEL,
            "env": "rllib_dapo/Arithmetic-v0",
            "env_runner_cls": scripted_runner(mixed),
            "model": str(tiny_model),
            "group_size": 4,
            "groups_per_batch": 4,
            "minibatch_size": 8,
            "progress": "off",
            "evaluation_duration": 2,
            "evaluation_samples": 2,
        }
        experiment = Experiment(
            name="sweep", config=small | config, storage_path=str(tmp_path), mode="max", **keys
        )
        validate(experiment)
        grid = to_tuner(experiment).fit()
        assert not grid.errors
        return grid

    return run


def test_a_metric_of_evaluations_between_which_training_goes_on(sweep):
    """D1, D3 and D5 in one sweep: repetitions, evaluation every second iteration."""
    grid = sweep(
        {"evaluation_interval": 2},
        metric="evaluation/accuracy",
        num_samples=2,
        stop={"training_iteration": 3},
        checkpoint_config={
            "checkpoint_frequency": 1,
            "num_to_keep": 2,
            "checkpoint_score_attribute": "evaluation/accuracy",
        },
    )
    assert sorted(result.config["seed"] for result in grid) == [0, 1]
    assert grid.get_best_result().metrics["evaluation"]["accuracy"] == 0.5
    for result in grid:
        rows = result.metrics_dataframe
        assert rows["evaluation/iteration"].tolist() == [0, 2, 2]
        assert rows["evaluation/accuracy"].notna().all()
        assert rows["time/evaluate_s"].gt(0).tolist() == [False, True, False]
        assert "evaluation/pass_at_k" in (Path(result.path) / "progress.csv").read_text()
        # The checkpoint whose weights were evaluated is the best one; the newest is kept too.
        best, metrics = result.best_checkpoints[-1]
        assert metrics["training_iteration"] == 2
        assert best.path.endswith("checkpoint_000001")


@pytest.mark.parametrize(
    ("scheduler", "arguments"),
    [("asynchyperband", {"max_t": 4}), ("medianstopping", {"grace_period": 1})],
)
def test_schedulers_compare_evaluations_that_are_made(sweep, scheduler, arguments):
    grid = sweep(
        {"evaluation_interval": 2, "evaluate_before_training": False, "lr": {"grid_search": [0.1]}},
        metric="evaluation/accuracy",
        scheduler=scheduler,
        scheduler_config={"time_attr": "training_iteration", **arguments},
        stop={"training_iteration": 3},
    )
    (result,) = grid
    assert result.metrics["evaluation"]["accuracy"] == 0.5
    rows = result.metrics_dataframe
    assert rows["evaluation/accuracy"].isna().tolist() == [True, False, False]
