"""Measures how many verdicts a second the graders give.

    python benchmarks/graders.py                  # half a minute on two cores
    python benchmarks/graders.py --count 5000 --workers 2
    python benchmarks/graders.py --group 16       # only one hanging group, beside harmless ones

Every answer is different, so that no cache helps. Each part is graded `--repeats` times with
new answers; the script prints the median and the range.

    integers     `Answer: 1,234.` and other spellings against numbers, in this process
    polynomials  products in two orders, in this process
    closed forms roots and functions, in the worker pool, all in one call
    one by one   the same, with one call for each
    hostile      the closed forms, but every tenth answer hangs the grader; the script prints
                 the time until the other verdicts are there, and until all are
    group        a group in which all completions but one hang, graded at once; other groups are
                 graded in a second thread meanwhile
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rllib_dapo.rewards.grading.grade import grade, grade_all
from rllib_dapo.rewards.grading.pool import PoolSettings, shared_pool

Pairs = list[tuple[str, str]]
_REASONING = "We compute step by step, carrying the result along. " * 20


def integers(start: int, count: int) -> Pairs:
    """Make correct and wrong integers in several spellings."""
    forms = ("Answer: {}", "Answer: **{}**", r"So it is \boxed{{{}}}.", "Answer: {:,}.")
    return [
        (_REASONING + forms[k % 4].format(k + (k % 3 == 0)), str(k))
        for k in range(start, start + count)
    ]


def polynomials(start: int, count: int) -> Pairs:
    """Make pairs of a polynomial and the same in another order."""
    return [
        (f"{_REASONING}Answer: (x-3)(x+{k})", f"(x+{k + (k % 3 == 0)})(x-3)")
        for k in range(start, start + count)
    ]


def closed_forms(start: int, count: int) -> Pairs:
    """Make pairs with roots, sines, logarithms and tuples of roots."""
    kinds = (
        (r"\frac{{{0}\sqrt{{2}}}}{{7}}", r"\frac{{{1}}}{{7\sqrt{{2}}}}"),
        (r"\sin^2 x+{0}", r"{0}+1-\cos^2 x"),
        (r"\ln {0} + \ln 3", r"\ln {2}"),
        (r"({0}+\sqrt{{3}}, \pi)", r"(\sqrt{{3}}+{0}, \pi)"),
    )
    pairs = []
    for k in range(start, start + count):
        answer, gold = kinds[k % 4]
        wrong = k % 3 == 0
        pairs.append(
            (f"{_REASONING}Answer: {answer.format(k + wrong)}", gold.format(k, 2 * k, 3 * k))
        )
    return pairs


def hostile(start: int, count: int) -> Pairs:
    """Make closed forms, of which every tenth is a factorial that takes hours."""
    pairs = closed_forms(start, count)
    for i in range(0, count, 10):
        pairs[i] = (f"Answer: {start + i}+((9!)!)!", "7+5!")
    return pairs


def rate(
    name: str,
    make: Callable[[int, int], Pairs],
    count: int,
    repeats: int,
    limits: PoolSettings,
    *,
    together: bool = True,
) -> None:
    """Grade one part `repeats` times and print its rate."""
    rates = []
    for turn in range(repeats):
        pairs = make(1_000_000 * (turn + 1), count)
        start = time.perf_counter()
        if together:
            texts, golds = zip(*pairs, strict=True)
            verdicts = grade_all(texts, golds, limits=limits)
        else:
            verdicts = [grade(text, gold, limits=limits) for text, gold in pairs]
        rates.append(count / (time.perf_counter() - start))
        share = sum(v.correct for v in verdicts) / count
        assert 0.3 < share < 0.9, (name, share)
    low, high = min(rates), max(rates)
    print(f"{name:14}{statistics.median(rates):10,.0f} verdicts/s   ({low:,.0f} to {high:,.0f})")


def report_hostile(count: int, limits: PoolSettings) -> None:
    """Submit all at once; print when the harmless verdicts are there, and when all are."""
    ends: dict[int, float] = {}
    pairs = hostile(50_000_000, count)
    start = time.perf_counter()

    def one(i: int) -> str:
        verdict = grade(*pairs[i], limits=limits)
        ends[i] = time.perf_counter() - start
        return verdict.matched_by

    with ThreadPoolExecutor(count) as threads:
        outcomes = list(threads.map(one, range(count)))
    harmless = [end for i, end in ends.items() if i % 10]
    print(
        f"{'hostile':14}{count} answers, {count // 10} of them hanging"
        f" ({outcomes.count('timed_out')} timed out): the others within {max(harmless):.2f} s,"
        f" all within {max(ends.values()):.2f} s"
    )


def report_group(size: int, limits: PoolSettings) -> None:
    """Grade a group that hangs in one thread, and harmless groups in another."""
    texts = [f"Answer: {90_000_000 + i}+((9!)!)!" for i in range(size - 1)] + ["Answer: 7+5!"]
    times: list[float] = []
    with ThreadPoolExecutor(1) as thread:
        start = time.perf_counter()
        hanging = thread.submit(grade_all, texts, ["7+5!"] * size, limits=limits)
        while not hanging.done():
            pairs = closed_forms(60_000_000 + size * len(times), size)
            began = time.perf_counter()
            grade_all(*zip(*pairs, strict=True), limits=limits)
            times.append(time.perf_counter() - began)
            time.sleep(0.05)
        verdicts = hanging.result()
        elapsed = time.perf_counter() - start
    outcomes = [v.matched_by for v in verdicts]
    assert verdicts[-1].correct
    print(
        f"{'group':14}{size - 1} of {size} hang ({outcomes.count('timed_out')} timed out, the other"
        f" correct): {elapsed:.2f} s; {len(times)} harmless groups meanwhile, the median in"
        f" {statistics.median(times):.3f} s, the slowest in {max(times):.2f} s"
    )


def main() -> None:
    """Measure all parts."""
    parser = argparse.ArgumentParser(description="Verdicts per second.")
    parser.add_argument("--count", type=int, default=2_000, help="answers per repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--group", type=int, default=0, help="size of the hanging group")
    arguments = parser.parse_args()
    limits = PoolSettings(workers=arguments.workers)
    versions = {name: importlib.metadata.version(name) for name in ("mpmath", "ray")}
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f},"
        f" Python {platform.python_version()}, "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + f", {limits}"
    )
    start = time.perf_counter()
    grade(r"Answer: \sqrt{12}", r"2\sqrt{3}", limits=limits)
    print(f"{'start':14}{time.perf_counter() - start:10.2f} s until the first symbolic verdict")
    if arguments.group:
        report_group(arguments.group, limits)
        shared_pool(limits).close()
        return
    size, turns = arguments.count, arguments.repeats
    rate("integers", integers, 5 * size, turns, limits)
    rate("polynomials", polynomials, size, turns, limits)
    rate("closed forms", closed_forms, size, turns, limits)
    rate("one by one", closed_forms_apart, size // 4, turns, limits, together=False)
    report_hostile(100, limits)
    report_group(16, limits)
    shared_pool(limits).close()


def closed_forms_apart(start: int, count: int) -> Pairs:
    """Make closed forms that no other part grades."""
    return closed_forms(start + 20_000_000, count)


if __name__ == "__main__":
    main()
