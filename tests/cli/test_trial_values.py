"""The values that trials get: seeds of repetitions, and values that depend on others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.search.variant_generator import generate_variants

from rllib_dapo.cli import search_space
from rllib_dapo.cli.check import validate
from rllib_dapo.cli.experiment_file import Experiment, load_experiments, parse_experiments
from rllib_dapo.cli.tuner import varied_names, with_own_seeds
from rllib_dapo.errors import ExperimentFileError


def drawn(experiment: Experiment) -> list[dict[str, Any]]:
    """The configs that Tune makes of an experiment."""
    space = search_space.to_tune(dict(with_own_seeds(experiment).config))
    return [config for _, config in generate_variants(space)]


@pytest.mark.parametrize("config", [{}, {"seed": None}], ids=str)
@pytest.mark.parametrize("repetitions", [2, 3, 7])
def test_repetitions_without_a_seed_get_seeds_of_their_own(config, repetitions):
    experiment = Experiment("a", config=config, num_samples=repetitions)
    assert [one["seed"] for one in drawn(experiment)] == list(range(repetitions))
    assert with_own_seeds(experiment).num_samples == 1
    assert varied_names(experiment) == ("seed",)


def test_values_that_are_compared_share_the_seed_of_their_repetition():
    config = {"lr": {"grid_search": [1e-4, 1e-3]}}
    pairs = [(c["lr"], c["seed"]) for c in drawn(Experiment("a", config=config, num_samples=2))]
    assert sorted(pairs) == [(1e-4, 0), (1e-4, 1), (1e-3, 0), (1e-3, 1)]


def test_each_repetition_draws_its_own_values():
    config = {"lr": {"tune.uniform": [0.0, 1.0]}}
    values = [c["lr"] for c in drawn(Experiment("a", config=config, num_samples=5))]
    assert len(set(values)) == 5


@pytest.mark.parametrize(
    "experiment",
    [
        Experiment("a"),
        Experiment("a", config={"seed": 0}, num_samples=3),
        Experiment("a", config={"seed": 5}, num_samples=3),
        Experiment("a", config={"seed": {"tune.randint": [0, 9]}}, num_samples=3),
        Experiment("a", run="PPO", num_samples=3),
    ],
    ids=repr,
)
def test_a_seed_that_is_given_stays(experiment):
    assert with_own_seeds(experiment) is experiment


def test_endless_repetitions_draw_their_seeds():
    seeds = {drawn(Experiment("a", num_samples=-1))[0]["seed"] for _ in range(5)}
    assert len(seeds) == 5


# -- Values that depend on others -----------------------------------------------------------

FILE = """
from ray import tune
from rllib_dapo import DAPOConfig

config = (
    DAPOConfig()
    .environment("rllib_dapo/Arithmetic-v0")
    .training(
        groups_per_batch=tune.grid_search([4, 8]),
        group_size=4,
        minibatch_size=tune.sample_from({function}),
    )
)
"""


def python_file(tmp_path: Path, function: str) -> Experiment:
    path = tmp_path / "dependent.py"
    path.write_text(FILE.replace("{function}", function), encoding="utf-8")
    (experiment,) = load_experiments(path)
    return experiment


@pytest.mark.parametrize(
    "function",
    [
        'lambda c: c["groups_per_batch"] * 2',
        "lambda spec: spec.config.groups_per_batch * 2",
        "lambda c: c.groups_per_batch * 2",
    ],
)
def test_values_that_depend_on_others_are_checked_with_them(tmp_path, function):
    configs = validate(python_file(tmp_path, function))
    assert [(c.groups_per_batch, c.minibatch_size) for c in configs] == [(4, 8), (8, 16)]


def test_an_impossible_value_that_depends_on_others_is_refused(tmp_path):
    with pytest.raises(ExperimentFileError, match="minibatch_size=5"):
        validate(python_file(tmp_path, 'lambda c: c["groups_per_batch"] + 1'))


@pytest.mark.parametrize("function", ['lambda c: c["not there"]', "lambda: 1 / 0"])
def test_what_cannot_be_known_before_is_left_to_the_trial(tmp_path, function):
    (config,) = validate(python_file(tmp_path, function))
    assert config.groups_per_batch == 4


def test_functions_of_functions_are_called_in_their_order():
    config = {
        "c": tune.sample_from(lambda c: c["b"] + 1),
        "b": tune.sample_from(lambda c: c["a"] * 2),
        "a": {"grid_search": [1, 5]},
    }
    assert list(search_space.variants(config)) == [
        {"c": 3, "b": 2, "a": 1},
        {"c": 11, "b": 10, "a": 5},
    ]


def test_a_function_in_yaml_is_refused_with_the_remedy():
    text = "a: {env: x, config: {lr: {tune.sample_from: 'config.x // 4'}}}"
    with pytest.raises(ExperimentFileError, match=r"write the experiment as a \.py file"):
        parse_experiments(text, "x.yaml")
