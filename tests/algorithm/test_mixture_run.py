"""A mixture of data sets through the whole algorithm, engine scripted."""

from __future__ import annotations

import json
from pathlib import Path

from scripted_engine import NO_MODEL, mixed, right, scripted_runner, solution

from rllib_dapo import DAPOConfig, metrics


def easy_is_right(prompt: str, i: int) -> str:
    """Sums of two terms are always right, of three every second time."""
    return right(prompt, i) if prompt.count("+") == 1 else mixed(prompt, i)


def test_training_and_evaluation_report_the_accuracy_of_each_source(ray_session, tmp_path: Path):
    sums = {
        "two": [f"{n}+{n + 1}" for n in range(20)],
        "three": [f"{n}+{n + 1}+{n + 2}" for n in range(20)],
    }
    for name, texts in sums.items():
        rows = [{"problem": f"{t}=?", "answer": str(solution(t))} for t in texts]
        text = "\n".join(json.dumps(row) for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    sources = [{"path": str(tmp_path / f"{name}.jsonl"), "weight": 1} for name in sums]
    algorithm = (
        DAPOConfig()
        .environment("rllib_dapo/Math-v0", env_config={"dataset": sources})
        .env_runners(env_runner_cls=scripted_runner(easy_is_right))
        .training(
            group_size=4,
            groups_per_batch=4,
            minibatch_size=8,
            warmup_iterations=0,
            progress="off",
            **NO_MODEL,
        )
        .evaluation(evaluation_interval=1, evaluation_duration=8)
        .debugging(seed=1)
        .build_algo()
    )
    try:
        result = algorithm.train()
    finally:
        algorithm.stop()
    for prefix in (metrics.ROLLOUT, metrics.EVALUATION, metrics.INITIAL_EVALUATION):
        assert result[prefix]["dataset_accuracy"] == {"two": 1.0, "three": 0.5}, prefix
