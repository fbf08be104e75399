"""The pool: limits, replacement, and the places grading must work in."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from grading_questions import (
    FACTORIAL,
    GOLD,
    HANGING,
    LIMITS,
    TOWER,
    gone,
    good,
    hanging,
    pair,
)

from rllib_dapo.errors import DAPOError, SettingError
from rllib_dapo.rewards.grading import pool_dispatcher
from rllib_dapo.rewards.grading.grade import grade
from rllib_dapo.rewards.grading.pool import PoolSettings, WorkerPool, read_limits, shared_pool
from rllib_dapo.rewards.grading.pool_dispatcher import Dispatcher, Job


def test_ten_of_a_hundred_hang_and_the_others_do_not_wait() -> None:
    pool = WorkerPool(PoolSettings(workers=2, seconds=2.0))
    pool.compare([good(0)])
    ended: dict[int, tuple[float, str]] = {}
    start = time.monotonic()

    def compare(k: int) -> None:
        question = hanging(k) if k % 10 == 3 else good(k)
        outcome = pool.compare([question])[0]
        ended[k] = (time.monotonic() - start, outcome)

    with ThreadPoolExecutor(100) as threads:
        list(threads.map(compare, range(100)))
    pool.close()
    quick = [at for k, (at, outcome) in ended.items() if outcome == "same"]
    assert len(quick) == 90
    assert {o for k, (_, o) in ended.items() if k % 10 == 3} == {"timed_out"}
    # Each hanging one holds one of two workers for a tenth of a second: half a second.
    # If they held them to the end, that would be ten seconds.
    assert max(quick) < 4.0
    assert max(at for at, _ in ended.values()) < 10.0


def test_hanging_workers_are_killed_and_buried(pool: WorkerPool) -> None:
    before = pool.pids()
    outcomes = pool.compare([hanging(1), good(5), hanging(2), good(6)])
    assert outcomes == ["timed_out", "same", "timed_out", "same"]
    left = pool.pids()
    assert left[0] == before[0]
    assert len(left) <= 1 + LIMITS.workers
    children = Path(f"/proc/{left[0]}/task/{left[0]}/children").read_text().split()
    assert set(map(int, children)) <= set(left)  # no zombies
    pool.close()
    assert gone([*before, *left])


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (HANGING, FACTORIAL),
        ("9^{9^{9^{9^9}}}", TOWER),
        ("5^{5^{5^{5^5}}}", TOWER),
        ("2003^{2002^{2001^{2000}}}", TOWER),
        (r"\binom{9^{9^{9^9}}}{9^{9^{9}}}", rf"\binom{{5}}{{2}}^{{{TOWER}}}"),
    ],
)
def test_astronomical_answers_are_wrong_within_the_limits(answer: str, gold: str) -> None:
    start = time.monotonic()
    verdict = grade(f"Answer: {answer}", gold, limits=LIMITS)
    assert not verdict.correct
    assert verdict.matched_by in ("timed_out", "different")
    assert time.monotonic() - start < LIMITS.seconds + 1.5
    for pid in shared_pool(LIMITS).pids():
        peak = [x for x in Path(f"/proc/{pid}/status").read_text().split("\n") if "VmPeak" in x]
        assert int(peak[0].split()[1]) <= LIMITS.memory_mib * 1024


def test_too_much_memory_ends_a_comparison_before_its_time() -> None:
    """9^(9^(9^9)) takes 330 MiB within a second, and hours."""
    pool = WorkerPool(PoolSettings(workers=1, seconds=60.0, memory_mib=128))
    start = time.monotonic()
    assert pool.compare([pair("9^{9^{9^9}}", TOWER)]) == ["timed_out"]
    assert time.monotonic() - start < 20
    assert pool.compare([good(1)]) == ["same"]
    pool.close()


def test_a_verdict_says_that_it_timed_out() -> None:
    verdict = grade(f"Answer: {HANGING}", FACTORIAL, limits=LIMITS)
    assert (verdict.correct, verdict.matched_by) == (False, "timed_out")
    assert verdict.extracted == HANGING


def test_what_is_known_is_not_compared_again(pool: WorkerPool) -> None:
    assert pool.compare([hanging(1)]) == ["timed_out"]
    start = time.monotonic()
    assert pool.compare([hanging(1)] * 50) == ["timed_out"] * 50
    assert time.monotonic() - start < LIMITS.seconds / 2


def test_the_same_question_twice_at_once_is_asked_once(pool: WorkerPool) -> None:
    start = time.monotonic()
    assert pool.compare([hanging(3)] * 20) == ["timed_out"] * 20
    assert time.monotonic() - start < 2 * LIMITS.seconds


def test_killed_workers_and_a_killed_server_are_replaced(pool: WorkerPool) -> None:
    for pid in pool.pids()[1:]:
        os.kill(pid, signal.SIGKILL)
    assert pool.compare([good(k) for k in range(10, 20)]) == ["same"] * 10
    os.kill(pool.pids()[0], signal.SIGKILL)
    for pid in pool.pids()[1:]:
        os.kill(pid, signal.SIGKILL)
    assert pool.compare([good(k) for k in range(20, 30)]) == ["same"] * 10


def test_a_worker_that_dies_costs_no_verdict_unless_the_next_one_dies_too() -> None:
    dispatcher = Dispatcher(1, 30.0, 512)
    dispatcher.start()
    job = Job(json.dumps(hanging(1)).encode())
    dispatcher.submit([job])

    def busy(other_than: int) -> int:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            if len(pids := dispatcher.pids()) == 2 and pids[1] != other_than:
                return pids[1]
            time.sleep(0.01)
        raise TimeoutError

    first = busy(0)
    os.kill(first, signal.SIGKILL)
    second = busy(first)
    assert not job.future.done()
    os.kill(second, signal.SIGKILL)
    assert job.future.result(5) == "timed_out"
    dispatcher.close()


def test_a_starved_worker_times_nothing_out_until_much_later() -> None:
    """A process that gets no CPU time does not make a correct completion wrong."""
    pool = WorkerPool(PoolSettings(workers=1, seconds=0.5))
    pool.compare([good(0)])
    worker = pool.pids()[1]
    with ThreadPoolExecutor(1) as threads:
        os.kill(worker, signal.SIGSTOP)
        starved = threads.submit(pool.compare, [good(1)])
        time.sleep(1.0)
        assert not starved.done()
        os.kill(worker, signal.SIGCONT)
        assert starved.result(10) == ["same"]
        os.kill(worker, signal.SIGSTOP)
        assert threads.submit(pool.compare, [good(2)]).result(10) == ["timed_out"]
    assert gone([worker])
    pool.close()


def test_a_closed_pool_starts_again(pool: WorkerPool) -> None:
    pool.close()
    assert pool.pids() == []
    assert pool.compare([good(7)]) == ["same"]


def test_workers_load_nothing_of_the_trainer(pool: WorkerPool) -> None:
    for pid in pool.pids():
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert not any(f"/{name}/" in maps for name in ("torch", "ray", "vllm", "numpy"))
        assert len(list(Path(f"/proc/{pid}/fd").iterdir())) <= 6


def test_nothing_is_started_for_numbers_and_polynomials() -> None:
    limits = PoolSettings(seconds=1.25)
    assert grade("Answer: 34.0", "34", limits=limits).correct
    assert grade("Answer: 1+2x+x^2", "x^2+2x+1", limits=limits).correct
    assert not grade(r"Answer: \int_0^1 x dx", GOLD, limits=limits).correct
    assert shared_pool(limits).pids() == []


def test_a_server_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_dispatcher.sys, "executable", "/bin/false")
    pool = WorkerPool(PoolSettings(workers=1))
    for k in range(3):
        with pytest.raises(DAPOError, match="did not start"):
            pool.compare([good(k)])
    monkeypatch.undo()
    assert pool.compare([good(1)]) == ["same"]
    pool.close()


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"workers": 0}, "workers"), ({"seconds": 0}, "seconds"), ({"memory_mib": 8}, "memory_mib")],
)
def test_impossible_limits_are_refused(settings: dict[str, int], name: str) -> None:
    with pytest.raises(SettingError, match=name) as caught:
        PoolSettings(**settings)
    assert caught.value.setting == name


def test_limits_come_from_a_mapping() -> None:
    assert read_limits(None, "grading") == PoolSettings()
    assert read_limits({"seconds": 0.5}, "grading") == PoolSettings(seconds=0.5)
    with pytest.raises(SettingError, match="did you mean 'seconds'") as caught:
        read_limits({"second": 1}, "env_config.grading")
    assert caught.value.setting == "env_config.grading.second"
    with pytest.raises(SettingError, match=r"env_config.grading.workers=0: use") as caught:
        read_limits({"workers": 0}, "env_config.grading")
    assert caught.value.setting == "env_config.grading.workers"
