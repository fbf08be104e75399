"""One real training run in a process of its own; prints what came of it as JSON.

vLLM starts only once in a process, so the test that runs this cannot do it itself:

    python tests/support/end_to_end.py --iterations 5 --lr 2e-4 --seed 0
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def flat(results: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a nested result by their paths."""
    numbers: dict[str, float] = {}
    for key, value in results.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            numbers |= flat(value, f"{path}/")
        elif isinstance(value, (int, float)):
            numbers[path] = float(value)
    return numbers


def main() -> None:
    """Train and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    import ray

    from rllib_dapo import DAPOConfig

    ray.init(
        num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=200 * 2**20
    )
    algorithm = (
        DAPOConfig()
        .environment("rllib_dapo/Arithmetic-v0")
        .training(
            model="embedded",
            lr=arguments.lr,
            groups_per_batch=16,
            group_size=16,
            minibatch_size=64,
            warmup_iterations=0,
            progress="off",
        )
        .evaluation(
            evaluation_interval=arguments.iterations,
            evaluation_duration=32,
            evaluation_config={"env_config": {"split": "validation"}},
        )
        .debugging(seed=arguments.seed)
        .build_algo()
    )
    results = [flat(algorithm.train()) for _ in range(arguments.iterations)]
    algorithm.stop()
    ray.shutdown()
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
