"""The README's Python works as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from scripted_engine import NO_MODEL, mixed, scripted_runner

from rllib_dapo.algorithm.dapo import DAPOConfig

README = Path(__file__).parent.parent / "README.md"
EXAMPLE, SWEEP = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("ray_session")
def test_the_example_runs(tmp_path, monkeypatch, request, capsys):
    """Everything is real but the engine, and the batch is small."""
    build = DAPOConfig.build_algo

    def build_small(config: DAPOConfig) -> Any:
        config.validate()  # as it is written
        config.env_runners(env_runner_cls=scripted_runner(mixed))
        config.training(groups_per_batch=2, group_size=2, minibatch_size=2, progress="off")
        config.training(**NO_MODEL)
        config.evaluation(evaluation_duration=2)
        algorithm = build(config)
        request.addfinalizer(algorithm.stop)
        return algorithm

    monkeypatch.setattr(DAPOConfig, "build_algo", build_small)
    monkeypatch.chdir(tmp_path)
    exec(compile(EXAMPLE, "README.md", "exec"), {})  # noqa: S102 - our own text
    assert len(capsys.readouterr().out.strip().splitlines()) == 10
    assert (tmp_path / "results" / "checkpoint" / "learner_group").is_dir()


def test_the_sweep_is_made_of_known_settings(monkeypatch):
    class FakeTuner:
        def __init__(self, name: str, *, param_space: dict[str, Any], **options: Any) -> None:
            grid = param_space.pop("clip_high")["grid_search"]
            for value in grid:
                DAPOConfig().update_from_dict({**param_space, "clip_high": value}).validate()
            assert name == "DAPO"
            assert len(grid) == 3

        def fit(self) -> str:
            return "fitted"

    monkeypatch.setattr("ray.tune.Tuner", FakeTuner)
    names: dict[str, Any] = {}
    exec(compile(SWEEP, "README.md", "exec"), names)  # noqa: S102 - our own text
    assert names["results"] == "fitted"
