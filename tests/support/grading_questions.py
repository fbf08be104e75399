"""Questions to a pool of graders: harmless ones, and such as never end."""

from __future__ import annotations

import time
from pathlib import Path

from rllib_dapo.rewards.grading.parser import parse_math
from rllib_dapo.rewards.grading.pool import PoolSettings
from rllib_dapo.rewards.grading.trees import Tree

GOLD = r"\frac{1}{\sqrt{2}}"
ANSWER = r"Answer: \frac{\sqrt{2}}{2}"
# Factorials and towers are allowed where the ground truth has them.
HANGING = "((9!)!)!"  # takes hours, in 30 MiB
FACTORIAL = "5!"
TOWER = "2^{2^{2^2}}"
LIMITS = PoolSettings(workers=2, seconds=1.0, memory_mib=256)


def pair(answer: str, gold: str) -> tuple[Tree, Tree]:
    return parse_math(answer).tree, parse_math(gold).tree


def good(k: int) -> tuple[Tree, Tree]:
    return pair(rf"\frac{{{k}}}{{\sqrt{{2}}}}", rf"\frac{{{k}\sqrt{{2}}}}{{2}}")


def hanging(k: int) -> tuple[Tree, Tree]:
    return pair(f"{k}+{HANGING}", FACTORIAL)


def gone(pids: list[int], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)
