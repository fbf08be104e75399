"""The environment written out in docs/environments.md trains as it stands."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from scripted_engine import NO_MODEL, scripted_runner

from rllib_dapo import DAPOConfig
from rllib_dapo.envs.make import make_env

PAGE = Path(__file__).parent.parent / "docs" / "environments.md"
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
ENV = "my_tasks:Backwards-v0"


@pytest.fixture
def my_tasks(tmp_path, monkeypatch):
    (tmp_path / "my_tasks.py").write_text(EXAMPLE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_tasks", None)


def backwards(prompt: str, i: int) -> str:
    """Every second answer is right."""
    number = re.findall(r"\d+", prompt)[-1]
    return f"Answer: {number[::-1] if i % 2 else number + '1'}"


def test_it_is_about_thirty_lines():
    assert len([line for line in EXAMPLE.splitlines() if line.strip()]) <= 32


def test_the_same_reset_poses_the_same_problem(my_tasks):
    env = make_env(ENV, {"digits": 5})
    first, _ = env.reset(seed=1, options={"index": 7})
    second, _ = env.reset(seed=2, options={"index": 7})
    other, _ = env.reset(seed=2, options={"index": 8})
    assert first == second != other
    assert re.fullmatch(r"Write \d{5} backwards\.", first)


@pytest.mark.usefixtures("ray_session")
def test_it_trains(my_tasks, request):
    algorithm = (
        DAPOConfig()
        .environment(ENV, env_config={"digits": 3})
        .env_runners(env_runner_cls=scripted_runner(backwards))
        .training(
            group_size=4,
            groups_per_batch=2,
            minibatch_size=4,
            warmup_iterations=0,
            progress="off",
            **NO_MODEL,
        )
        .build_algo()
    )
    request.addfinalizer(algorithm.stop)
    result = algorithm.train()
    assert result["env_runners"]["accuracy"] == 0.5
    assert result["learners"]["default_policy"]["updates"] == 2
