"""Real training: vLLM, the embedded model, the learner, nothing replaced."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rllib_dapo import metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parents[1] / "support" / "end_to_end.py"
ACCURACY = "env_runners/accuracy"
GAP = "learners/default_policy/engine_gap_max"


def train(*, iterations: int, lr: float) -> list[dict[str, float]]:
    """The results of a run with seed 0, iteration by iteration."""
    command = [sys.executable, str(SCRIPT), "--iterations", str(iterations), "--lr", str(lr)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def run() -> list[dict[str, float]]:
    return train(iterations=6, lr=2e-4)


@pytest.fixture(scope="module")
def control() -> list[dict[str, float]]:
    return train(iterations=4, lr=0.0)


def test_training_raises_the_accuracy(run):
    accuracies = [result[ACCURACY] for result in run]
    assert accuracies[-1] > accuracies[0] + 0.15, accuracies


def test_training_raises_the_accuracy_on_problems_never_trained_on(run):
    before = run[0]["initial_evaluation/accuracy"]
    assert run[-1]["evaluation/accuracy"] > before + 0.1


def test_without_a_learning_rate_the_accuracy_does_not_rise(control):
    accuracies = [result[ACCURACY] for result in control]
    assert abs(accuracies[-1] - accuracies[0]) < 0.12, accuracies


def test_engine_and_learner_agree_in_every_iteration(run):
    gaps = [result[GAP] for result in run]
    assert all(0.0 < gap <= 1e-4 for gap in gaps), gaps


def test_every_metric_is_reported(run):
    first, last = set(run[0]), set(run[-1])
    for metric in metrics.ALL_METRICS:
        assert metric.key in (first if "initial" in metric.key else last), metric.key


def test_the_same_seed_gives_the_same_run(run):
    again = train(iterations=2, lr=2e-4)
    for key in (ACCURACY, "env_runners/tokens_sampled", "learners/default_policy/loss"):
        assert [result[key] for result in again] == [result[key] for result in run[:2]], key


def test_the_learning_rate_has_no_say_before_the_first_update(run, control):
    assert run[0][ACCURACY] == control[0][ACCURACY]
