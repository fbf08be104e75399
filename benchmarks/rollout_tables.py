"""The tables of docs/scaling.md, from the numbers of `rollout.py`."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from pathlib import Path
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
    header = ["runners", "sampling", "metrics", "token batch", "total", "calls"]
    return table([*header, "step, s", "busiest engine, s", "MiB of the largest host"], rows)


def lead_table(lead: list[dict[str, Any]]) -> str:
    """Iteration times, and those with a lead over the longer phase."""
    rows = []
    for case in lead:
        plain, ahead = case["iteration_s"]["async_level 0"], case["iteration_s"]["async_level 1"]
        longest = max(case["sample_s"], case["learn_s"])
        over = [value / longest for value in ahead]
        numbers = [f"{case['sample_s']:g}", f"{case['learn_s']:g}"]
        rows.append([*numbers, spread(plain), spread(ahead), spread(over)])
    header = ["a: sampling, s", "b: learning, s", "`async_level: 0`, s"]
    return table([*header, "`async_level: 1`, s", "over max(a, b)"], rows)


def messages_table(result: dict[str, Any]) -> str:
    """Bytes of messages."""
    step = result["driver"][0]["steps"][0]
    rows = [[name, f"{size:,.0f}"] for name, size in result["messages"].items()]
    total = step["array_bytes"] + step["text_bytes"]
    rows.append(["all completions of a step", f"{total:,.0f}"])
    return table(["", "bytes"], rows)


def tables(result: dict[str, Any]) -> dict[str, str]:
    """Tables of the parts that were measured."""
    made = {}
    if "local" in result and "remote" in result:
        made["speed"] = speed_table(result)
    for part, make in (
        ("groups", groups_table),
        ("cluster", groups_table),
        ("driver", driver_table),
        ("lead", lead_table),
    ):
        if part in result:
            made[part] = make(result[part])
    if "driver" in result and "messages" in result:
        made["messages"] = messages_table(result)
    return made


def fill(page: Path, made: dict[str, str]) -> None:
    """Put tables into a page, each between `<!-- its name -->` and `<!-- end -->`."""
    text = page.read_text(encoding="utf-8")
    for name, body in made.items():
        start, end = re.escape(f"<!-- {name} -->"), re.escape("<!-- end -->")
        block = f"<!-- {name} -->\n\n{body}\n\n<!-- end -->"
        text = re.sub(f"{start}.*?{end}", lambda _, block=block: block, text, flags=re.DOTALL)
    page.write_text(text, encoding="utf-8")
