"""Draws a picture of one run and saves its numbers, from Tune's result.json.

python benchmarks/draw_run.py results/NAME/TRIAL/result.json --out docs/images/smollm2
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from learning_curves import accuracy_chart, curve, machine


def draw(run: dict[str, Any], path: Path) -> None:
    """Draw the sampled accuracy in training and on held-out problems over iterations."""
    train = [value for _, value in run["train"]]
    _, iterations, values = zip(*run["held_out"], strict=True)
    with accuracy_chart(
        path,
        xlabel="iteration",
        ylabel="accuracy by sampling, T = 1",
        height=4,
        legend="lower right",
    ) as axes:
        axes.plot(range(1, len(train) + 1), train, color="0.7", lw=1.4, label="training problems")
        axes.plot(iterations, values, color="#1f5fa8", marker="o", ms=4, label="held-out problems")


def main() -> None:
    """Read the result, save its numbers and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="path without ending")
    options = parser.parse_args()
    lines = options.result.read_text(encoding="utf-8").splitlines()
    run = curve([json.loads(line) for line in lines])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    record = json.dumps({"machine": machine(), **run}, indent=1) + "\n"
    options.out.with_suffix(".json").write_text(record, encoding="utf-8")
    draw(run, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
