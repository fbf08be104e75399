"""Experiment files: what is read, and how what is wrong with them is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_algorithm import FakeAlgorithm, read
from hypothesis import given
from hypothesis import strategies as st

from rllib_dapo.cli.check import algorithm_class, validate
from rllib_dapo.cli.experiment_file import load_experiments, parse_experiments
from rllib_dapo.cli.yaml_lines import parse
from rllib_dapo.errors import ExperimentFileError


@pytest.fixture(autouse=True)
def _fake_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllib_dapo.cli.check.algorithm_class", lambda experiment: FakeAlgorithm)


def refusal(text: str) -> str:
    with pytest.raises(ExperimentFileError) as caught:
        list(map(validate, read(text)))
    return str(caught.value)


# -- reading ----------------------------------------------------------------------------


def test_reads_the_old_schema() -> None:
    [one] = read(
        """
        sums:
          run: PPO
          env: arithmetic
          stop: {training_iteration: 3, evaluation: {accuracy: 0.9}}
          num_samples: 2
          storage_path: out
          checkpoint_config: {checkpoint_frequency: 5, num_to_keep: 1}
          time_budget_s: 60
          max_failures: 1
          log_to_file: true
          config: {lr: 1e-4}
        """
    )
    assert (one.name, one.run, one.num_samples) == ("sums", "PPO", 2)
    assert one.config == {"lr": 1e-4, "env": "arithmetic"}
    assert one.stop == {"training_iteration": 3, "evaluation/accuracy": 0.9}
    assert one.checkpoint_config == {"checkpoint_frequency": 5, "num_to_keep": 1}


def test_several_experiments_keep_their_order_and_dapo_is_the_default() -> None:
    two = read("b:\n  env: x\na:\n  env: y\n")
    assert [(e.name, e.run) for e in two] == [("b", "DAPO"), ("a", "DAPO")]


def test_aliases_and_merges() -> None:
    two = read(
        """
        a: &base
          stop: {training_iteration: 3}
          config: &config {lr: 0.1, model: m}
        b:
          <<: *base
          config: {<<: *config, lr: 0.2}
        """
    )
    assert two[1].stop == {"training_iteration": 3}
    assert two[1].config == {"lr": 0.2, "model": "m"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("-2E+3", -2000.0),
        ("1.5", 1.5),
        (".5e1", 5.0),
        ("1e5", 1e5),
        ("12", 12),
        ("1_000", 1000),
        ("'1e-4'", "1e-4"),
        ("1e", "1e"),
        ("2024-01-01", "2024-01-01"),
        ("1:30", "1:30"),
        ("yes", True),
        ("~", None),
    ],
)
def test_scalars_are_what_people_mean(text: str, value: Any) -> None:
    read_back = parse(f"a: {text}", "x").data["a"]
    assert read_back == value
    assert type(read_back) is type(value)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "found nothing"),
        ("# only a comment", 1, "found nothing"),
        ("- a\n- b", 1, "a list"),
        ("just text", 1, "a str"),
        ("a:\n  config: {lr: 0.1}\n  config: {}", 3, "'config' is given twice (first in line 2)"),
        ("a:\n  config:\n    lr: 0.1\n    lr: 0.2", 4, "'lr' is given twice"),
        ("a:\n\tconfig: {}", 2, "a tab in the indentation; use spaces"),
        ("a:\n  config: {lr: 0.1", 2, "check indentation"),
        ("a:\n  run: [DAPO", 2, "check indentation"),
        ("a: !!python/object/apply:os.system [ls]", 1, "not allowed"),
        ("a: !!timestamp 2024", 1, "remove the tag"),
        ("a: &a [*a]", 1, "contains itself"),
        ("a: {? [1, 2] : 3}", 1, "a key must be text"),
        ("a: {true: 3}", 1, "a key must be text"),
        ("a: \x07", 1, "remove the character"),
        ("a:\n  conifg: {}", 2, "unknown key `conifg`; did you mean `config`?"),
        ("a:\n  lr: 0.1", 2, "settings of the algorithm go under `config`"),
        ("a:\n  checkpoint_config:\n    frequency: 1", 3, "did you mean `checkpoint_frequency`?"),
        ("a:\n  checkpoint_freq: 1", 2, "checkpoint_config: {checkpoint_frequency: ...}"),
        ("a:\n  local_dir: x", 2, "write `storage_path`"),
        ("a:\n  resources_per_trial: {}", 2, "num_env_runners"),
        ("run: DAPO\nconfig: {}", 1, "put a line `my-experiment:` above"),
        ("a:\n  num_samples: 0", 2, "1 or more"),
        ("a:\n  max_failures: lots", 2, "'lots'"),
        ("a:\n  checkpoint_config: {checkpoint_score_order: up}", 2, "min or max"),
        ("a:\n  stop: 3", 2, "a mapping"),
        ("a:\n  stop:\n    accuracy: high", 3, "not a number"),
        ("a:\n  stop:\n    training_iterations: 3", 3, "did you mean `training_iteration`?"),
        ("a: 3", 1, "give it run, stop and config"),
        ("a/b: {}", 1, "cannot name a folder"),
        ("a:\n  env: x\n  config: {env: y}", 2, "keep one"),
        ("a:\n  config:\n    lr: {eval: 'open(1)'}", 3, "would run text as code"),
        ("a:\n  config:\n    l:\n      - 1\n      - {tune.unifrom: [0, 1]}", 5, "tune.uniform?"),
        ("a:\n  config:\n    lr: {tune.loguniform: [0, 1]}", 3, "0 < low < high"),
        ("a:\n  config:\n    lr: {tune.uniform: [0]}", 3, "2 numbers"),
        ("a:\n  config:\n    lr: {grid_search: 3}", 3, "takes a list"),
        ("a:\n  config:\n    lr: {grid_search: [1], x: 2}", 3, "stands alone"),
        # From the algorithm's own config:
        ("a:\n  config:\n    model: m\n    lrr: 0.1", 4, "`lrr` is unknown; did you mean `lr`?"),
        ("a:\n  config:\n    lr: -1e-4", 3, "must be above 0"),
        ("a:\n  config:\n    env_config:\n      digit: 2", 4, "did you mean `digits`?"),
        ("a:\n  config:\n    lr: {grid_search: [0.1, -1.0]}", 3, "must be above 0"),
        ("a:\n  config: {model: missing}", 1, "no such model"),
        ("a:\n  restore: nowhere", 2, "no checkpoint folder"),
        ("a:\n  scheduler: hyperbnad", 2, "did you mean `hyperband`?"),
        ("a:\n  scheduler: pbt\n  scheduler_config: {tim: 1}", 3, "has no `tim`"),
    ],
)
def test_errors_name_file_line_and_remedy(text: str, line: int, words: str) -> None:
    message = refusal(text)
    assert message.startswith(f"x.yaml:{line}: ")
    assert words in message


def test_unknown_algorithms_are_refused() -> None:
    [one] = read("a:\n  run: DAOP\n")
    with pytest.raises(
        ExperimentFileError, match=r"x\.yaml:2: no algorithm `DAOP`; did you mean `D"
    ):
        algorithm_class(one)
    [one] = read("a:\n  run: PPO\n")
    assert algorithm_class(one).__name__ == "PPO"


def test_deep_nesting_and_alias_bombs_are_refused() -> None:
    assert "nested too deeply" in refusal("[" * 5000)
    bomb = "a0: &a0 [1, 1]\n" + "".join(
        f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}, *a{i}, *a{i}]\n" for i in range(20)
    )
    assert "fewer aliases" in refusal(bomb)


@given(st.text() | st.text(alphabet="ab: \n-{}[]&*!#'\"<|>?%@`,0123456789.e~\t=", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_experiments(text, "x.yaml")
    except ExperimentFileError as error:
        assert str(error).startswith("x.yaml:")  # noqa: PT017


scalars = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False)
trees = st.recursive(
    scalars | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(trees)
def test_what_yaml_writes_is_read_back(tree: Any) -> None:
    # Quoted, with tags for the rest: PyYAML would write the text "1e-4" without quotes, and
    # loses line separators in unquoted text.
    assert parse(yaml.safe_dump(tree, default_style='"'), "x").data == tree


# -- files ------------------------------------------------------------------------------


def test_files(tmp_path: Path) -> None:
    good = tmp_path / "a.yaml"
    good.write_bytes("\ufeffa:\r\n  env: x\r\n".encode())
    assert load_experiments(good)[0].config == {"env": "x"}
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")
    for name, words in [
        ("none.yaml", "no such file"),
        ("a.txt", "ends in .yaml"),
        ("latin.yaml", "not UTF-8"),
    ]:
        with pytest.raises(ExperimentFileError, match=words):
            load_experiments(tmp_path / name)


PY_CONFIG = """
class Config:
    class algo_class: pass
    def to_dict(self): return {"lr": 0.5}
"""


def test_python_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PY_CONFIG + "config = Config()\nstop = {'training_iteration': 2}\n")
    [one] = load_experiments(path)
    assert (one.name, one.run_name, one.config) == ("mine", "algo_class", {"lr": 0.5})
    assert one.stop == {"training_iteration": 2}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1", "`config` is nothing; define `config = DAPOConfig"),
        ("config = {}", "`config` is a dict"),
        ("\nraise KeyError('k')", "m.py:2: KeyError"),
        ("x =", "m.py:1: SyntaxError"),
        ("import sys\nsys.exit(3)", "m.py:2: SystemExit"),
        (PY_CONFIG + "config = Config()\nstop = 3", "must be a dictionary"),
        (PY_CONFIG + "config = Config()\nstop = {'a': 'b'}", "not a number"),
    ],
)
def test_python_file_errors(tmp_path: Path, code: str, words: str) -> None:
    path = tmp_path / "m.py"
    path.write_text(code)
    with pytest.raises(ExperimentFileError) as caught:
        load_experiments(path)
    assert words in str(caught.value)
