"""The `rllib` command: which calls it makes, what it prints, its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from rllib_dapo.cli import examples
from rllib_dapo.cli import main as cli
from rllib_dapo.cli.experiment_file import Experiment
from rllib_dapo.cli.flags import RunOptions
from rllib_dapo.errors import DataError, SettingError


class Runs:
    """Stands for `run_experiments`: remembers its arguments, returns `grids` or raises."""

    def __init__(self) -> None:
        self.experiments: list[Experiment] = []
        self.options = RunOptions()
        self.grids: list[Any] = []
        self.error: BaseException | None = None

    def __call__(self, experiments: list[Experiment], options: RunOptions) -> list[Any]:
        self.experiments, self.options = list(experiments), options
        if self.error:
            raise self.error
        return self.grids


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    fake = Runs()
    monkeypatch.setattr(cli, "run_experiments", fake)
    return fake


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "x.yaml"
    path.write_text("sums: {env: x, stop: {accuracy: 1}, num_samples: 3, config: {lr: 0.1}}\n")
    return str(path)


def call(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, list(arguments))


def test_train_file_leaves_the_file_as_it_is(runs: Runs, file: str) -> None:
    assert call("train", "file", file).exit_code == 0
    [one] = runs.experiments
    assert (one.num_samples, one.stop, one.config["lr"]) == (3, {"accuracy": 1}, 0.1)
    assert one.checkpoint_config == {}
    assert runs.options == RunOptions()


def test_train_file_hands_every_flag_on(runs: Runs, file: str) -> None:
    outcome = call(
        *("train", "file", file, "-s", '{"training_iteration": 2}', "--checkpoint-freq", "4"),
        *("--no-checkpoint-at-end", "--keep-checkpoints-num", "2", "--num-samples", "1"),
        *("--checkpoint-score-attr", "min-loss", "--storage-path", "/out", "--set", "lr=1e-4"),
        *("--set", "seed=3", "--scheduler", "pbt", "--scheduler-config", '{"time_attr": "t"}'),
        *("--resume", "--ray-address", "auto", "--ray-num-cpus", "3", "--ray-num-gpus", "0"),
        *("--ray-object-store-memory", "100", "--no-check-cluster", "--wandb-project", "p"),
        *("--wandb-key", "k", "--wandb-run-name", "n", "-vv"),
    )
    assert outcome.exit_code == 0
    [one] = runs.experiments
    assert one.stop == {"training_iteration": 2}
    assert one.config == {"lr": 1e-4, "env": "x", "seed": 3}
    assert one.checkpoint_config == {
        "checkpoint_frequency": 4,
        "checkpoint_at_end": False,
        "num_to_keep": 2,
        "checkpoint_score_attribute": "loss",
        "checkpoint_score_order": "min",
    }
    assert (one.num_samples, one.storage_path, one.scheduler) == (1, "/out", "pbt")
    assert one.scheduler_config == {"time_attr": "t"}
    assert runs.options == RunOptions(
        verbosity=2,
        resume=True,
        ray_address="auto",
        ray_num_cpus=3,
        ray_num_gpus=0,
        ray_object_store_memory=100,
        check_cluster=False,
        wandb_project="p",
        wandb_key="k",
        wandb_run_name="n",
    )


@pytest.mark.parametrize("option", ["--run", "--algo"])
def test_train_without_a_file(runs: Runs, option: str) -> None:
    outcome = call("train", option, "PPO", "--env", "x", "--config", '{"lr": 1e-4}', "-s", "{a: 1}")
    assert outcome.exit_code == 0
    [one] = runs.experiments
    assert (one.run, one.config, one.stop) == ("PPO", {"lr": 1e-4, "env": "x"}, {"a": 1})


def test_train_alone_shows_its_help(runs: Runs) -> None:
    outcome = call("train")
    assert outcome.exit_code == 2
    assert "--env" in outcome.output
    assert runs.experiments == []


def test_options_before_file_are_refused_and_not_ignored(runs: Runs, file: str) -> None:
    outcome = call("train", "--num-samples", "5", "file", file)
    assert outcome.exit_code == 2
    assert "come after the file's name" in outcome.stderr
    assert runs.experiments == []


@pytest.mark.parametrize("error", [SettingError("bad lr"), DataError("row 3: no answer")])
def test_wrong_input_is_one_message_and_exit_2(runs: Runs, file: str, error: Exception) -> None:
    runs.error = error
    outcome = call("train", "file", file)
    assert outcome.exit_code == 2
    assert outcome.stderr == f"{error}\n"
    assert outcome.stdout == ""


def test_vv_shows_the_traceback_too(runs: Runs, file: str) -> None:
    runs.error = SettingError("bad lr")
    outcome = call("train", "file", file, "-vv")
    assert outcome.exit_code == 2
    assert "Traceback" in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "file", "none.yaml"], "none.yaml: no such file"),
        (["train", "file", "FILE", "--set", "lr"], "--set key=value"),
        (["train", "file", "FILE", "--stop", "3"], "--stop"),
        (["train", "file", "FILE", "--num-samples", "x"], "--num-samples"),
        (["train", "file", "FILE", "--nonsense"], "--nonsense"),
        (["train", "file"], "CONFIG"),
        (["train", "--env", "x", "--config", "[1]"], "--config"),
        (["train", "--env", "x", "--experiment-name", "a/b"], "--experiment-name"),
        (["evaluate", "/nowhere"], "/nowhere is not a checkpoint"),
        (["example", "get", "nonsense"], "no example"),
    ],
)
def test_user_errors(runs: Runs, file: str, arguments: list[str], words: str) -> None:
    outcome = call(*[file if argument == "FILE" else argument for argument in arguments])
    assert outcome.exit_code == 2
    assert words in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert runs.experiments == []


def test_messages_are_not_read_as_markup(runs: Runs, file: str) -> None:
    runs.error = SettingError("choices: [red] [/]")
    assert call("train", "file", file).stderr == "choices: [red] [/]\n"


def test_failed_trials_exit_1_with_their_cause(runs: Runs, file: str) -> None:
    good = SimpleNamespace(path="/r/good", error=None)
    bad = SimpleNamespace(path="/r/bad", error=ValueError("no reward"))
    runs.grids = [[good], [good, bad]]
    outcome = call("train", "file", file)
    assert outcome.exit_code == 1
    expected = "trial bad: ValueError: no reward\n  full log: /r/bad/error.txt\n"
    assert outcome.stderr == expected


def test_ctrl_c_exits_130_and_says_how_to_go_on(runs: Runs, file: str) -> None:
    runs.error = KeyboardInterrupt()
    outcome = call("train", "file", file, "--storage-path", "/out")
    assert outcome.exit_code == 130
    assert "/out/sums" in outcome.stderr
    assert "--resume" in outcome.stderr


def test_evaluate_prints_and_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cli, "evaluate_checkpoint", lambda path, options: {"b/c": 0.5, "a": 1.0})
    outcome = call("evaluate", "ckpt", "--out", str(tmp_path / "n.json"))
    assert outcome.exit_code == 0
    assert outcome.stdout.split() == ["a", "1", "b/c", "0.5"]
    assert json.loads((tmp_path / "n.json").read_text()) == {"a": 1.0, "b/c": 0.5}


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "tuned_examples"
    (place / "sweeps").mkdir(parents=True)
    (place / "sums.yaml").write_text("# Sums\n# in a minute.\n# More.\nsums: {env: x}\n")
    (place / "sweeps" / "lr.yaml").write_text("lr: {env: x}\n")
    # Defaults are bound when a function is defined.
    for function in (examples.example_files, examples.example_file):
        monkeypatch.setattr(function, "__defaults__", ((tmp_path / "none", place),))


@pytest.mark.usefixtures("shipped")
def test_examples(runs: Runs) -> None:
    listed = call("example", "list").stdout.splitlines()
    assert [" ".join(one.split()) for one in listed] == ["sums Sums in a minute.", "sweeps/lr"]
    assert (
        call("example", "get", "sums").stdout == "# Sums\n# in a minute.\n# More.\nsums: {env: x}\n"
    )
    assert "did you mean `sums`?" in call("example", "get", "sum").stderr
    assert call("example", "run", "sweeps/lr.yaml", "--set", "seed=1").exit_code == 0
    assert runs.experiments[0].config == {"env": "x", "seed": 1}


def test_version() -> None:
    outcome = call("--version")
    assert outcome.exit_code == 0
    assert "ray 2." in outcome.stdout


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from rllib_dapo.cli.main import app\n"
        "try: app(['train', 'file', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'ray.rllib', 'torch', 'transformers', 'vllm'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(  # noqa: PLW1510
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "--checkpoint-at-end / --no-checkpoint-at-end" in done.stdout
