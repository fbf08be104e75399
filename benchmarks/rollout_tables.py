"""The tables of docs/scaling.md, from the numbers of `rollout.py`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any


def spread(values: Iterable[float], digits: int = 2) -> str:
    """Median, smallest and largest."""
    values = list(values)
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ratios(values: list[float], others: list[float]) -> list[float]:
    """Turn by turn."""
    return [a / b for a, b in zip(values, others, strict=True)]


def speed_table(result: dict[str, Any]) -> str:
    """The system's tokens a second over those of vLLM alone."""
    rows = []
    for part in ("local", "remote"):
        speeds, cpu = result[part]["tokens_per_s"], result[part]["cpu_s"]
        rows.append(
            [
                part,
                f"{statistics.median(speeds['system']):.0f}",
                f"{statistics.median(speeds['bare']):.0f}",
                spread(ratios(speeds["system"], speeds["bare"])),
                spread(ratios(cpu["bare"], cpu["system"])),
                spread(ratios(speeds["bare"], speeds["bare, unseeded"])),
            ]
        )
    header = ["runner", "system, tokens/s", "`LLM.generate`", "ratio", "ratio by CPU time"]
    return table([*header, "seeded over unseeded"], rows)


def groups_table(groups: dict[str, Any]) -> str:
    """Kept groups a second over those of rounds of N, and groups sampled for a batch."""
    names = list(next(iter(groups["rates"].values()))["groups_per_s"])
    rows = []
    for rate, one in groups["rates"].items():
        per_s, sampled = one["groups_per_s"], one["sampled_per_batch"]
        cells = [
            f"{spread(ratios(per_s[n], per_s['rounds of N']))}; {statistics.mean(sampled[n]):.0f}"
            for n in names
        ]
        rows.append([rate, *cells])
    return table(["keep rate", *names], rows)


def driver_table(driver: list[dict[str, Any]]) -> str:
    """CPU seconds of the driver for a step."""
    rows = []
    for one in driver:
        steps = one["steps"]
        total = [s["sample_cpu_s"] + s["metrics_cpu_s"] + s["batch_cpu_s"] for s in steps]
        hosts = [host["own_mib"] for host in one["hosts"]]
        rows.append(
            [
                str(one["runners"]),
                spread(s["sample_cpu_s"] for s in steps),
                spread(s["metrics_cpu_s"] for s in steps),
                spread(s["batch_cpu_s"] for s in steps),
                spread(total),
                f"{statistics.median(s['messages'] for s in steps):.0f}",
                spread((s["wall_s"] for s in steps), 1),
                spread((s["engine_s"] for s in steps), 1),
                f"{max(hosts):.0f}",
            ]
        )
    header = ["runners", "sampling", "metrics", "token batch", "together", "calls"]
    return table([*header, "step, s", "busiest engine, s", "MiB of a host"], rows)


def lead_table(lead: list[dict[str, Any]]) -> str:
    """Iteration times, and those with a lead over the longer phase."""
    rows = []
    for case in lead:
        plain, ahead = case["iteration_s"]["rollout_lead 0"], case["iteration_s"]["rollout_lead 1"]
        longest = max(case["sample_s"], case["learn_s"])
        over = [value / longest for value in ahead]
        numbers = [f"{case['sample_s']:g}", f"{case['learn_s']:g}"]
        rows.append([*numbers, spread(plain), spread(ahead), spread(over)])
    header = ["a: sampling, s", "b: learning, s", "`rollout_lead: 0`, s"]
    return table([*header, "`rollout_lead: 1`, s", "over max(a, b)"], rows)


def tables(result: dict[str, Any]) -> str:
    """All tables whose parts were measured."""
    makers = {
        "groups": groups_table,
        "cluster": groups_table,
        "driver": driver_table,
        "lead": lead_table,
    }
    made = [f"{part}\n\n{make(result[part])}" for part, make in makers.items() if part in result]
    if "local" in result and "remote" in result:
        made.insert(0, f"speed\n\n{speed_table(result)}")
    return "\n\n".join(made)
