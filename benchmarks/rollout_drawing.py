"""The picture of `rollout.py`."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np

BLUE, GREY, RED, LIGHT = "#2a6f97", "#9aa5b1", "#b0482f", "#89c2d9"
COLOURS = {
    "streaming": BLUE,
    "streaming, partial": LIGHT,
    "rounds of N": RED,
    "rounds to fit": GREY,
}


def middle(values: list[float]) -> float:
    """Their median."""
    return statistics.median(values)


def spread(values: list[float]) -> list[list[float]]:
    """How far the smallest and the largest are from the median, as error bars want it."""
    return [[middle(values) - min(values)], [max(values) - middle(values)]]


def draw(result: dict[str, Any], path: Path) -> None:
    """All parts in one figure."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplot_mosaic(
        [["speed"] * 2 + ["driver"] * 2 + ["lead"] * 2, ["groups"] * 3 + ["cluster"] * 3],
        figsize=(11, 6.2),
        layout="constrained",
    )
    draw_speed(axes["speed"], result)
    draw_driver(axes["driver"], result["driver"])
    draw_lead(axes["lead"], result["lead"])
    draw_groups(axes["groups"], result["groups"], "one vLLM engine, seconds of this machine")
    draw_groups(axes["cluster"], result["cluster"], "64 scripted engines, virtual seconds")
    for one in axes.values():
        one.set_ylim(0, one.get_ylim()[1] * 1.35)  # room for the legends
        one.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def draw_speed(axes: Any, result: dict[str, Any]) -> None:
    """The system's tokens a second over those of vLLM alone, turn by turn."""
    for place, part in enumerate(("local", "remote")):
        speeds = result[part]["tokens_per_s"]
        for side, (name, colour) in enumerate((("bare", BLUE), ("bare, unseeded", GREY))):
            values = [a / b for a, b in zip(speeds["system"], speeds[name], strict=True)]
            label = f"over {name}" if not place else None
            at = place + 0.38 * side - 0.19
            axes.bar(at, middle(values), 0.36, yerr=spread(values), color=colour, label=label)
    axes.axhline(1.0, color="0.6", lw=0.8)
    axes.set_xticks(range(2), ["local runner", "remote runner"], fontsize=8)
    axes.set_title("tokens/s of the system over LLM.generate", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="upper center", ncols=2)


def draw_driver(axes: Any, driver: list[dict[str, Any]]) -> None:
    """CPU seconds of the driver for a step."""
    parts = {
        "sample_cpu_s": ("asking, collecting, judging", BLUE),
        "metrics_cpu_s": ("metrics", RED),
        "batch_cpu_s": ("token batch", LIGHT),
    }
    bottoms = np.zeros(len(driver))
    for key, (label, colour) in parts.items():
        values = np.array([middle([step[key] for step in one["steps"]]) for one in driver])
        axes.bar(range(len(driver)), values, bottom=bottoms, color=colour, label=label)
        bottoms += values
    axes.set_xticks(range(len(driver)), [f"{one['runners']} runners" for one in driver])
    axes.set_title("driver, CPU s a step (512 × 16 answers)", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def draw_lead(axes: Any, lead: list[dict[str, Any]]) -> None:
    """Iteration times with and without a lead, and the ideal ones."""
    for place, case in enumerate(lead):
        for side, (name, colour) in enumerate((("async_level 0", GREY), ("async_level 1", BLUE))):
            values = case["iteration_s"][name]
            label = name.replace(" ", ": ") if not place else None
            at = place + 0.38 * side - 0.19
            axes.bar(at, middle(values), 0.36, yerr=spread(values), color=colour, label=label)
        ideal = max(case["sample_s"], case["learn_s"])
        axes.plot(
            [place - 0.4, place + 0.4],
            [ideal, ideal],
            color=RED,
            label=None if place else "max(a, b)",
        )
    names = [f"a={case['sample_s']:g} s\nb={case['learn_s']:g} s" for case in lead]
    axes.set_xticks(range(len(lead)), names, fontsize=8)
    axes.set_title("iteration, s", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def draw_groups(axes: Any, groups: dict[str, Any], what: str) -> None:
    """Useful groups a second at each keep rate, relative to rounds of N."""
    for place, one in enumerate(groups["rates"].values()):
        per_s = one["groups_per_s"]
        rounds = middle(per_s["rounds of N"])
        for side, (name, colour) in enumerate(COLOURS.items()):
            values = [value / rounds for value in per_s[name]]
            at = place + 0.2 * (side - 1.5)
            label = name if not place else None
            axes.bar(at, middle(values), 0.19, yerr=spread(values), color=colour, label=label)
    axes.axhline(1.0, color="0.6", lw=0.8)
    names = [f"keep rate {rate}" for rate in groups["rates"]]
    axes.set_xticks(range(len(names)), names)
    axes.set_title(f"kept groups/s over those of rounds of N: {what}", fontsize=9)
    axes.legend(frameon=False, fontsize=8, loc="upper center", ncols=4)
