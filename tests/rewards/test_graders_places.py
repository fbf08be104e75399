"""Grading where signals fail, in forks and actors; and of anything at all."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from grading_questions import (
    ANSWER,
    FACTORIAL,
    GOLD,
    HANGING,
    LIMITS,
    TOWER,
    gone,
    good,
)
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from rllib_dapo.rewards.grading.grade import grade, grade_all
from rllib_dapo.rewards.grading.parser import parse_math
from rllib_dapo.rewards.grading.pool import PoolSettings, WorkerPool, shared_pool


def test_in_threads() -> None:
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda _: grade(ANSWER, GOLD), range(40)))
    assert all(v.matched_by == "symbolic" for v in verdicts)


def test_in_an_event_loop() -> None:
    async def main() -> bool:
        here = grade(ANSWER, GOLD).correct
        there = await asyncio.to_thread(grade, ANSWER, GOLD)
        return here and there.correct

    assert asyncio.run(main())


def test_in_a_fork(pool: WorkerPool) -> None:
    pids = pool.pids()
    shared = shared_pool()
    shared.compare([good(1)])
    child = os.fork()
    if child == 0:
        ok = shared_pool() is shared and shared.pids() == []
        ok = ok and shared.compare([good(1), good(31)]) == ["same", "same"]
        shared.close()
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert pool.pids() == pids
    assert pool.compare([good(32)]) == ["same"]
    assert shared.compare([good(33)]) == ["same"]


def test_threads_are_not_needed_to_end(tmp_path: Path) -> None:
    """A process that has graded ends by itself, and its workers with it."""
    import subprocess
    import sys

    script = tmp_path / "script.py"
    script.write_text(
        "from rllib_dapo.rewards.grading.grade import grade\n"
        "from rllib_dapo.rewards.grading.pool import shared_pool\n"
        f"assert grade({ANSWER!r}, {GOLD!r}).correct\n"
        "print(*shared_pool().pids())\n"
    )
    run = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, check=True
    )
    pids = list(map(int, run.stdout.split()))
    assert len(pids) >= 2
    assert gone(pids)


@pytest.mark.slow
def test_in_a_ray_actor(ray_session: None) -> None:
    import ray

    @ray.remote
    class Grader:
        def __init__(self) -> None:
            self.main = threading.current_thread() is threading.main_thread()

        def grade(self) -> list[str]:
            verdicts = grade_all(
                [ANSWER, f"Answer: {HANGING}", "Answer: 34"], [GOLD, FACTORIAL, "34"]
            )
            return [v.matched_by for v in verdicts]

    for options in ({}, {"max_concurrency": 4}):
        actor = Grader.options(**options).remote()
        try:
            answers = ray.get([actor.grade.remote() for _ in range(4)], timeout=120)
            assert answers == [["symbolic", "timed_out", "string"]] * 4
        finally:
            ray.kill(actor)


# -- Anything at all

_PIECES = st.lists(
    st.sampled_from(
        [
            *"0123456789xyei+-*/^_(){}[]|!,=<> ",
            *(r"\frac", r"\sqrt", r"\sqrt[3]", r"\pi", r"\sin", r"\log_2", r"\binom", r"\pm"),
            *(r"\{", r"\}", r"\cup", r"\infty", r"\left(", r"\right)", "^{", "}^{", " or ", "√"),
            *(r"\le", r"\begin{pmatrix}", "&", r"\\", r"\end{pmatrix}", r"\text{ cm}", "9^{9^{9"),
        ]
    ),
    max_size=16,
).map("".join)


@given(_PIECES | st.text(max_size=30))
@examples(150)
def test_any_answer_is_graded_in_time_and_memory(text: str) -> None:
    for gold in (GOLD, "(x+1)^2", TOWER, r"\{1,\sqrt{2}\}", r"y=2x+\sqrt{3}", "5!+e^x"):
        start = time.monotonic()
        verdict = grade(f"Answer: {text}", gold, limits=LIMITS)
        assert time.monotonic() - start < LIMITS.seconds + 1
        assert verdict.correct == (verdict.matched_by in ("string", "value", "symbolic"))


_SMALL = st.sampled_from([*"1239xy", r"\pi", "e", "i", "0.5"])
_BIG = st.recursive(
    _SMALL,
    lambda inner: st.one_of(
        *(
            st.tuples(inner, inner).map(lambda ab, form=form: form.format(*ab))
            for form in (
                *("({})+({})", "({})({})", r"\frac{{{}}}{{{}}}", "({})^{{{}}}", "({}, {})"),
                *(r"\binom{{{}}}{{{}}}", r"\{{{}, {}\}}", "[{}, {})", "{} = {}", "{} < {}"),
            )
        ),
        *(
            inner.map(lambda a, form=form: form.format(a))
            for form in (
                r"\sqrt{{{}}}",
                r"\sqrt[3]{{{}}}",
                "({})!",
                r"\sin({})",
                r"\ln({})",
                "-({})",
            )
        ),
    ),
    max_leaves=8,
)


@given(_BIG, _BIG)
@examples(60)
def test_any_two_values_are_compared_in_time(first: str, second: str) -> None:
    try:
        trees = parse_math(first).tree, parse_math(second).tree
    except ValueError:
        return
    pool = shared_pool(PoolSettings(workers=2, seconds=0.5, memory_mib=256))
    start = time.monotonic()
    assert pool.compare([trees])[0] in ("same", "different", "timed_out")
    assert pool.compare([(trees[0], trees[0])]) == ["same"]
    assert time.monotonic() - start < 2.0
