"""What one sees in the terminal during training."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from rllib_dapo.cli import console


def line(printer: console.IterationLines, trials: int = 1, **values: Any) -> None:
    trial = SimpleNamespace(trial_id="abc_00001")
    printer.on_trial_result(1, [trial] * trials, trial, values)


def test_a_line_per_iteration_and_a_header_every_20(capsys: pytest.CaptureFixture[str]) -> None:
    printer = pickle.loads(pickle.dumps(console.iteration_callback("DAPO")))  # noqa: S301
    for i in range(21):
        line(
            printer,
            training_iteration=i,
            env_runners={"accuracy": 0.25},
            evaluation={"accuracy": 0.5},
        )
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 23
    assert out[0].split()[:3] == out[21].split()[:3] == ["iter", "acc", "held-out"]
    assert out[1].split()[:5] == ["0", "25.0%", "50.0%", "–", "–"]
    assert len(set(map(len, out))) == 1


@pytest.mark.parametrize("value", [None, float("nan"), "text", True, [1]])
def test_odd_values_are_dashes(value: Any) -> None:
    assert console.Column("x", "a/b").show({"a": {"b": value}}) == "–"
    assert console.Column("x", "a/b").show({"a": value}) == "–"
    assert console.Column("x", "a/b").show({"a/b": 2}) == "2.000"


def test_several_trials_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    line(console.iteration_callback("PPO"), trials=2, training_iteration=1)
    assert capsys.readouterr().out.splitlines()[1].startswith("00001 ")


def test_narrow_terminals_get_the_first_columns() -> None:
    assert [c.header for c in console.fitting(console.DAPO_COLUMNS, 24)] == [
        "iter",
        "acc",
        "held-out",
    ]
    assert len(console.fitting(console.DAPO_COLUMNS, None)) == len(console.DAPO_COLUMNS)


def test_an_evaluation_of_an_earlier_iteration_is_a_dash(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printer = console.iteration_callback("DAPO")
    for iteration in (2, 3):
        line(
            printer,
            training_iteration=iteration,
            evaluation={"accuracy": 0.5, "iteration": 2.0},
        )
    _, made, carried = capsys.readouterr().out.splitlines()
    assert made.split()[2] == "50.0%"
    assert carried.split()[2] == "–"


def test_the_values_of_a_trial_are_printed_when_it_starts_and_when_they_change(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printer = console.iteration_callback("DAPO", ["lr", "seed", "env_config/terms"])
    trial = SimpleNamespace(
        trial_id="abc_00001", config={"lr": 1e-6, "seed": 1, "env_config": {"terms": 3}}
    )
    for lr in (1e-6, 1e-6, 2e-6):
        trial.config["lr"] = lr
        printer.on_trial_start(1, [trial], trial)
    assert capsys.readouterr().out.splitlines() == [
        "trial abc_00001: lr=1e-06, seed=1, env_config/terms=3",
        "trial abc_00001: lr=2e-06, seed=1, env_config/terms=3",
    ]
