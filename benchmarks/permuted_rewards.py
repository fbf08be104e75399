"""Runs a control that must not learn: rewards are permuted within each group.

    python benchmarks/permuted_rewards.py --config tuned_examples/dapo_math.yaml --out result.json

Everything else is as in the experiment: the same problems, and the same share of correct
completions per group. The script writes one JSON object per iteration, like Tune's result.json.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rllib_dapo.algorithm.dapo import DAPO, DAPOConfig
from rllib_dapo.cli.experiment_file import load_experiments
from rllib_dapo.types import Group


class PermutedDAPO(DAPO):
    """DAPO with the rewards of each group permuted before the update."""

    def _update(self, groups: tuple[Group, ...]) -> Any:
        rng = np.random.default_rng(self.iteration)
        return super()._update(tuple(permuted(group, rng) for group in groups))


def permuted(group: Group, rng: np.random.Generator) -> Group:
    """Return the group with its scores in another order."""
    order = rng.permutation(len(group.completions))
    scores = group.scores[order].tolist()
    completions = (
        replace(c, score=score) for c, score in zip(group.completions, scores, strict=True)
    )
    return replace(group, completions=tuple(completions))


def main() -> None:
    """Run the experiment with permuted rewards."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--iterations", type=int, default=None)
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args()
    (experiment,) = load_experiments(options.config)
    config = DAPOConfig(algo_class=PermutedDAPO).update_from_dict(dict(experiment.config))
    algorithm = config.build_algo()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", encoding="utf-8") as file:
        for _ in range(options.iterations or int(experiment.stop["training_iteration"])):
            row = algorithm.train()
            row.pop("config", None)
            file.write(json.dumps(row, default=float) + "\n")
            file.flush()
    algorithm.stop()


if __name__ == "__main__":
    main()
