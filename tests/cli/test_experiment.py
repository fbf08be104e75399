"""Experiments on their way to Tune and back."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_algorithm import FakeAlgorithm, read

from rllib_dapo.cli import run as experiment
from rllib_dapo.cli.check import check_resources
from rllib_dapo.cli.experiment_file import Experiment
from rllib_dapo.cli.flags import RunOptions
from rllib_dapo.cli.run import failed_trials, run_experiments
from rllib_dapo.cli.tuner import results_path, to_tuner
from rllib_dapo.errors import ExperimentFileError, SettingError


@pytest.fixture(autouse=True)
def _fake_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllib_dapo.cli.check.algorithm_class", lambda experiment: FakeAlgorithm)


# -- resources --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bundles", "nodes", "words"),
    [
        ([{"CPU": 1}] * 3, [{"CPU": 2}], "asks for 3 CPU and the cluster has 2"),
        ([{"CPU": 1, "GPU": 1}], [{"CPU": 8}], "num_gpus_per_learner"),
        ([{"CPU": 4}], [{"CPU": 2}, {"CPU": 2}], "more than any machine has"),
        ([{"tpu": 1}], [{"CPU": 2}], "what asks for 'tpu'"),
    ],
)
def test_impossible_requests_are_refused(bundles: Any, nodes: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        check_resources(bundles, nodes)


def test_possible_requests_pass() -> None:
    check_resources([{"CPU": 1}, {"CPU": 1, "GPU": 0}], [{"CPU": 1}, {"CPU": 1}])


# -- running ----------------------------------------------------------------------------


class FakeTuner:
    """Stands for `tune.Tuner`: remembers what it was made with."""

    made: list[dict[str, Any]]
    existing: set[str]

    def __init__(self, run: Any, **kwargs: Any) -> None:
        self.made.append({"run": run, **kwargs})

    @classmethod
    def can_restore(cls, path: str) -> bool:
        return path in cls.existing

    @classmethod
    def restore(cls, path: str, run: Any, **kwargs: Any) -> FakeTuner:
        return cls(run, path=path, **kwargs)

    def fit(self) -> list[Any]:
        signal.signal(signal.SIGINT, lambda *_: None)
        return [result()]


def result(**changes: Any) -> Any:
    values = {
        "path": "/r/a/trial_1",
        "error": None,
        "metrics": {"env_runners": {"accuracy": 0.5}, "time_total_s": 12.0},
        "checkpoint": SimpleNamespace(path="/r/a/trial_1/checkpoint_0"),
    }
    return SimpleNamespace(**values | changes)


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> type[FakeTuner]:
    fake = type("Fake", (FakeTuner,), {"made": [], "existing": set()})
    monkeypatch.setattr("ray.tune.Tuner", fake)
    return fake


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "_start_ray", lambda options: False)
    monkeypatch.setattr(experiment, "_nodes", lambda: [{"CPU": 2.0}])


def test_tuner_gets_everything(tuner: type[FakeTuner], tmp_path: Path) -> None:
    [one] = read(
        f"a: {{storage_path: {tmp_path}, stop: {{accuracy: 1}}, num_samples: 2, max_failures: 3,"
        " checkpoint_config: {num_to_keep: 4}, time_budget_s: 5, config: {lr: 0.1, seed: 4},"
        " metric: x, mode: max, scheduler: asynchyperband, scheduler_config: {max_t: 9},"
        " max_concurrent_trials: 1, restore: ckpt}"
    )
    to_tuner(one, verbosity=0)
    [made] = tuner.made
    run, tune = made["run_config"], made["tune_config"]
    assert made["run"] == "DAPO"
    assert made["param_space"] == {"lr": 0.1, "seed": 4}
    assert made["_tuner_kwargs"] == {"restore": "ckpt"}
    assert (run.name, run.storage_path, run.stop) == ("a", str(tmp_path), {"accuracy": 1})
    assert (run.checkpoint_config.num_to_keep, run.failure_config.max_failures) == (4, 3)
    assert (run.verbose, tune.num_samples, tune.time_budget_s) == (0, 2, 5)
    assert type(tune.scheduler).__name__ == "AsyncHyperBandScheduler"


def test_results_go_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert results_path(Experiment("a")) == str(tmp_path / "results" / "a")
    assert results_path(Experiment("a", storage_path="s3://b/c")) == "s3://b/c/a"


def test_resume_restores_what_is_there_and_starts_otherwise(tuner: type[FakeTuner]) -> None:
    one = Experiment("a", storage_path="/nowhere")
    to_tuner(one, resume=True)
    tuner.existing.add("/nowhere/a")
    to_tuner(one, resume=True)
    to_tuner(one, resume=False)
    assert [made.get("path") for made in tuner.made] == [None, "/nowhere/a", None]
    assert tuner.made[1]["resume_errored"]


@pytest.mark.usefixtures("cluster")
def test_nothing_runs_when_one_experiment_is_wrong(tuner: type[FakeTuner]) -> None:
    two = read("a: {config: {lr: 0.1}}\nb:\n  config:\n    lr: -1.0\n")
    with pytest.raises(ExperimentFileError, match=r"x\.yaml:4"):
        run_experiments(two)
    two = read("a: {config: {lr: 0.1}}\nb:\n  config:\n    num_env_runners: 5\n")
    with pytest.raises(ExperimentFileError, match=r"x\.yaml:3: a trial asks for 6 CPU"):
        run_experiments(two)
    assert tuner.made == []


@pytest.mark.usefixtures("cluster", "tuner")
def test_runs_one_after_the_other_and_says_what(capsys: pytest.CaptureFixture[str]) -> None:
    grids = run_experiments(read("a: {env: sums, stop: {accuracy: 1}}\nb: {}\n"))
    out = capsys.readouterr().out
    assert len(grids) == 2
    for words in ("a (DAPO)", "tiny", "sums", "1 CPU per trial", "accuracy ≥ 1", "results/a",
                  "tensorboard --logdir", "done acc 50.0%; 12 s", "checkpoint_0"):  # fmt: skip
        assert words in out
    assert out.index("a (DAPO)") < out.index("done") < out.index("b (DAPO)")


@pytest.mark.usefixtures("cluster")
def test_ctrl_c_inside_tune_is_noticed(
    tuner: type[FakeTuner], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = signal.getsignal(signal.SIGINT)
    # Tune puts the former handler back when its own is called.
    monkeypatch.setattr(tuner, "fit", lambda self: [result()])
    with pytest.raises(KeyboardInterrupt):
        run_experiments([Experiment("a"), Experiment("b")])
    assert len(tuner.made) == 1
    assert "stopped" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is found


def test_no_handler_of_tune_stays_behind(tuner: type[FakeTuner]) -> None:
    found = signal.getsignal(signal.SIGINT)
    _, interrupted = experiment._fit(tuner("DAPO"))  # type: ignore[arg-type]
    assert not interrupted
    assert signal.getsignal(signal.SIGINT) is found


class WrappedError(Exception):
    def __init__(self, text: str, cause: Exception | None = None) -> None:
        super().__init__(text)
        self.cause = cause


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            WrappedError("60 lines", WrappedError("40 lines", ValueError("bad lr"))),
            "ValueError: bad lr",
        ),
        (WrappedError("Traceback (most recent call last):\n  f\nValueError: x\n"), "ValueError: x"),
        (ValueError("two\nlines"), "ValueError: two\nlines"),
    ],
)
def test_failures_show_the_cause(error: Exception, message: str) -> None:
    grid: Any = [result(), result(error=error)]
    [failure] = failed_trials(grid)
    assert (failure.trial, failure.message) == ("trial_1", message)
    assert failure.log == "/r/a/trial_1/error.txt"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (RunOptions(wandb_project="p"), "pip install wandb"),
        (RunOptions(wandb_key="k"), "need --wandb-project"),
    ],
)
def test_wandb_options(options: RunOptions, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=words):
        run_experiments([Experiment("a")], options)
