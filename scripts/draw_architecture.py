"""Draw docs/images/architecture.png: the rooms of the package and the way of the data.

python scripts/draw_architecture.py
"""

from __future__ import annotations

import itertools
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

OUT = Path(__file__).parents[1] / "docs" / "images" / "architecture.png"

INK, GREY, PAPER = "#1f2430", "#6b7280", "#ffffff"
BLUE, GREEN, SAND, ROSE = "#dbe7fb", "#dcf0e2", "#f5ecd7", "#f8dfe3"

# (room, what a newcomer looks for there, left, width, colour), from the top floor down.
FLOORS: list[list[tuple[str, str, float, float, str]]] = [
    [("cli", "the rllib command, experiment files, transform-dataset", 0.0, 6.0, SAND)],
    [("algorithm", "DAPO.training_step, preflight checks, weight sync", 0.0, 6.0, SAND)],
    [
        ("rollout", "runners, engine,\ndynamic sampling", 0.0, 2.9, BLUE),
        ("learner", "the update,\nmicro-batches", 3.1, 2.9, ROSE),
    ],
    [("envs", "text environments: pose a problem, score completions", 0.0, 6.0, BLUE)],
    [("data", "data sets, prompts, the problem stream", 0.0, 6.0, BLUE)],
    [("model", "the policy: loading, LoRA, packed attention, shards", 0.0, 6.0, ROSE)],
    [
        ("rewards", "graders,\nreward functions", 0.0, 2.9, GREEN),
        ("losses", "objective,\nadvantages", 3.1, 2.9, ROSE),
    ],
    [("settings", "every setting: type, bounds, unit, meaning", 0.0, 6.0, SAND)],
    [("metrics · types · errors", "names that all rooms share", 0.0, 6.0, SAND)],
]
HEIGHT, GAP = 0.6, 0.17

# The way of one problem, from the top of the right column round to its beginning.
STATIONS = [
    ("problem", "data"),
    ("prompt", "data"),
    ("completions", "rollout"),
    ("scored group", "envs, rewards"),
    ("full batch", "rollout"),
    ("token batch", "rollout, losses"),
    ("update", "learner, model"),
    ("new weights", "algorithm"),
]


def main() -> None:
    """Draw and save."""
    mpl.rcParams.update({"font.family": "DejaVu Sans"})
    figure, axes = plt.subplots(figsize=(10, 6.2))
    axes.set(xlim=(-0.15, 11.1), ylim=(-0.35, 7.6))
    axes.axis("off")
    figure.patch.set_facecolor(PAPER)
    axes.text(0.0, 7.25, "Rooms: imports go down only", fontsize=12, weight="bold", color=INK)
    axes.text(7.85, 7.25, "The way of the data", fontsize=12, weight="bold", color=INK)
    for number, floor in enumerate(FLOORS):
        bottom = 6.35 - number * (HEIGHT + GAP)
        for name, meaning, left, width, colour in floor:
            _box(axes, left, bottom, width, colour, name, meaning)
    _data_way(axes)
    figure.savefig(OUT, dpi=140, bbox_inches="tight", facecolor=PAPER)


def _box(
    axes: Axes, left: float, bottom: float, width: float, colour: str, name: str, meaning: str
) -> None:
    """A room with its name, and in small letters what is in it."""
    shape = FancyBboxPatch(
        (left, bottom), width, HEIGHT, boxstyle="round,pad=0.02,rounding_size=0.08",
        facecolor=colour, edgecolor=INK, linewidth=1.0,
    )  # fmt: skip
    axes.add_patch(shape)
    axes.text(
        left + 0.12, bottom + HEIGHT / 2, name, va="center", fontsize=11, weight="bold", color=INK
    )
    axes.text(
        left + width - 0.1, bottom + HEIGHT / 2, meaning,
        va="center", ha="right", fontsize=8.5, color=INK, linespacing=1.15,
    )  # fmt: skip


def _data_way(axes: Axes) -> None:
    """A column of stations, and the arrow that leads from the last back to the sampling."""
    step = 6.0 / (len(STATIONS) - 1)
    heights = [6.5 - number * step for number in range(len(STATIONS))]
    for (name, room), height in zip(STATIONS, heights, strict=True):
        axes.text(7.85, height, name, va="center", fontsize=11, color=INK)
        axes.text(10.9, height, room, va="center", ha="right", fontsize=8.5, color=GREY)
    for upper, lower in itertools.pairwise(heights):
        _arrow(axes, (8.1, upper - 0.2), (8.1, lower + 0.2), 0.0)
    _arrow(axes, (7.75, heights[-1]), (7.75, heights[2]), -0.4)
    axes.text(
        7.08,
        (heights[-1] + heights[2]) / 2,
        "next\niteration",
        fontsize=8.5,
        color=GREY,
        va="center",
    )


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], bend: float) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=11,
            color=INK,
            linewidth=1.1,
            connectionstyle=f"arc3,rad={bend}",
        )
    )


if __name__ == "__main__":
    main()
