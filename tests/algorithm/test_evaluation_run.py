"""An evaluation as `evaluation_config` says, and runners none of which starts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted_engine import NO_MODEL, mixed, scripted_runner, solution

from rllib_dapo import metrics
from rllib_dapo.algorithm.dapo import DAPOConfig
from rllib_dapo.errors import EngineError
from rllib_dapo.rollout.env_runner import DAPOEnvRunner

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("ray_session")]


def test_an_evaluation_is_sampled_as_evaluation_config_says(tiny_model, tmp_path):
    """Six greedy completions of at most three tokens, and one prompt too long even to pose."""
    seen: list[Any] = []
    written = {"evaluation_samples": 6, "temperature": 0.5, "max_completion_length": 3}
    path = tmp_path / "problems.jsonl"
    rows = [
        {"problem": f"{text}=?", "answer": str(solution(text))}
        for text in ("1+2", "3+4", "100+200+300", "5+6")
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    config = (
        DAPOConfig()
        .environment("rllib_dapo/Math-v0", env_config={"dataset": str(path)})
        .env_runners(env_runner_cls=scripted_runner(mixed))
        .training(model=str(tiny_model), group_size=4, groups_per_batch=4, minibatch_size=8)
        .training(max_prompt_length=8, progress="off", **NO_MODEL)
        .evaluation(evaluation_interval=1, evaluation_config=written)
    )
    algorithm = config.build_algo()
    submit = algorithm.env_runner._engine.submit

    def noted(name: str, prompt: Any, n: int, sampling: Any, **more: Any) -> None:
        seen.append((n, sampling.temperature, sampling.max_tokens))
        submit(name, prompt, n, sampling, **more)

    algorithm.env_runner._engine.submit = noted
    try:
        report = algorithm.train()[metrics.EVALUATION]
    finally:
        algorithm.stop()
    assert set(seen) == {(6, 0.5, 3), (4, 1.0, 64)}
    assert (report["num_problems"], report["problems_failed"]) == (4, 1)
    assert (report["problems_too_long"], report["truncated_share"]) == (1, 1.0)


def test_runners_that_all_fail_to_start_are_named_with_the_reason():
    class NoGpu(DAPOEnvRunner):
        def make_module(self) -> None:
            raise RuntimeError("no GPU has so much memory")

    config = (
        DAPOConfig()
        .environment("rllib_dapo/Arithmetic-v0")
        .env_runners(env_runner_cls=NoGpu, num_env_runners=2, num_cpus_per_env_runner=0)
    )
    with pytest.raises(EngineError, match=r"none of the 2 runners .* no GPU has so much memory"):
        config.build_algo()
