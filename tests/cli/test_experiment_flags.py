"""Varied values, and what the command line changes in an experiment."""

from __future__ import annotations

from typing import Any

import pytest
from fake_algorithm import FakeAlgorithm, read

from rllib_dapo.cli import search_space
from rllib_dapo.cli.check import validate
from rllib_dapo.cli.flags import Flags, from_command_line, with_flags
from rllib_dapo.errors import ExperimentFileError


@pytest.fixture(autouse=True)
def _fake_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllib_dapo.cli.check.algorithm_class", lambda experiment: FakeAlgorithm)


# -- varied values ----------------------------------------------------------------------


def test_grid_search_stays_tunes_own_form() -> None:
    [one] = read("a: {config: {lr: {grid_search: [1e-4, 1e-5]}, n: [{grid_search: [1, 2]}]}}")
    assert search_space.to_tune(dict(one.config)) == {
        "lr": {"grid_search": [1e-4, 1e-5]},
        "n": [{"grid_search": [1, 2]}],
    }
    assert list(search_space.variants(dict(one.config))) == [
        {"lr": lr, "n": [n]} for lr in (1e-4, 1e-5) for n in (1, 2)
    ]


@pytest.mark.parametrize(
    ("kind", "arguments", "examples"),
    [
        ("tune.uniform", [0.0, 1.0], (0.0, 1.0)),
        ("tune.loguniform", [1e-5, 1e-3], (1e-5, 1e-3)),
        ("tune.quniform", [0.0, 1.0, 0.5], (0.0, 1.0)),
        ("tune.randint", [1, 5], (1, 4)),
        ("tune.lograndint", [1, 5], (1, 4)),
        ("tune.choice", ["a", "b", 3], ("a", "b", 3)),
    ],
)
def test_samplers(kind: str, arguments: list[Any], examples: tuple[Any, ...]) -> None:
    varied = search_space.varied({kind: arguments}, "lr")
    assert varied is not None
    assert varied.examples() == examples
    sample = varied.to_tune().sample()
    assert sample in arguments if kind == "tune.choice" else arguments[0] <= sample <= arguments[1]


def test_checking_a_large_grid_tries_every_value_but_not_every_combination() -> None:
    config = {key: {"grid_search": list(range(20))} for key in "abc"}
    tried = list(search_space.variants(config))
    assert len(tried) == 1 + 3 * 19
    assert all({one[key] for one in tried} == set(range(20)) for key in "abc")


# -- flags ------------------------------------------------------------------------------


def test_flags_that_were_not_given_change_nothing() -> None:
    [one] = read(
        "a: {stop: {accuracy: 1}, num_samples: 3, config: {lr: 0.1}, scheduler: fifo,"
        " checkpoint_config: {checkpoint_at_end: false, checkpoint_frequency: 7}}"
    )
    assert with_flags(one, Flags()) == one


def test_flags_win() -> None:
    [one] = read("a: {stop: {accuracy: 1}, config: {lr: 0.1, env_config: {digits: 1, seed: 4}}}")
    changed = with_flags(
        one,
        Flags(
            stop='{"training_iteration": 2}',
            checkpoint_freq=5,
            checkpoint_at_end=False,
            checkpoint_score_attr="min-loss",
            settings=("lr=1e-4", "env_config.digits=3"),
        ),
    )
    assert changed.stop == {"training_iteration": 2}
    assert changed.config == {"lr": 1e-4, "env_config": {"digits": 3, "seed": 4}}
    assert changed.checkpoint_config == {
        "checkpoint_frequency": 5,
        "checkpoint_at_end": False,
        "checkpoint_score_attribute": "loss",
        "checkpoint_score_order": "min",
    }
    assert one.config["env_config"] == {"digits": 1, "seed": 4}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (Flags(stop="{"), "--stop:1:"),
        (Flags(stop="3"), "--stop: '3' is not a mapping"),
        (Flags(stop='{"training_iterations": 3}'), "did you mean"),
        (Flags(scheduler_config="[1]"), "--scheduler-config"),
        (Flags(num_samples=0), "--num-samples"),
        (Flags(settings=("lr",)), "write --set key=value"),
        (Flags(settings=("lr.x=1",)), "--set lr.x: `lr` is 0.1"),
        (Flags(settings=("lr=-1.0",)), "--set lr: `lr` is -1.0"),
        (Flags(settings=("lrr=-1.0",)), "--set lrr: `lrr` is unknown"),
    ],
)
def test_bad_flags_are_named(flags: Flags, words: str) -> None:
    [one] = read("a: {config: {lr: 0.1}}")
    with pytest.raises(ExperimentFileError) as caught:
        validate(with_flags(one, flags))
    assert words in str(caught.value)


def test_without_a_file() -> None:
    one = from_command_line("PPO", "x", '{"lr": 1e-4}', None, Flags(num_samples=2))
    assert (one.name, one.run, one.num_samples) == ("PPO", "PPO", 2)
    assert one.config == {"lr": 1e-4, "env": "x"}
