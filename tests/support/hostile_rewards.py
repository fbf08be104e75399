"""Reward functions of each kind, good and hostile; found by import path (`hostile_rewards:…`)."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

CALLS: list[Any] = []
RELEASE = threading.Event()
"""Lets the calls that hang end, so that a test leaves no thread behind."""


@contextmanager
def clean() -> Iterator[None]:
    """For the time of a test: no calls noted, and whatever hangs ends with it."""
    CALLS.clear()
    RELEASE.clear()
    yield
    RELEASE.set()


def entries(*names: str, **common: Any) -> list[dict[str, Any]]:
    """The setting `reward_functions` for some of these."""
    return [{"function": f"hostile_rewards:{name}", **common} for name in names]


# -- Good ones ------------------------------------------------------------------------------


def letters(answer, **more):
    return len(answer)


def everything(answer, *, problem, info, truncated, num_tokens):
    CALLS.append((answer, problem, dict(info), truncated, num_tokens))
    info.clear()  # theirs to change
    return 0.25


def of_a_group(answers, *, problem, infos, truncated, num_tokens):
    CALLS.append((list(answers), problem, infos, truncated, num_tokens))
    return [float(len(a)) for a in answers]


def as_array(answers):
    return np.arange(len(answers), dtype=np.float32)


def numpy_scalar(answer):
    return np.float32(0.5)


def boolean(answer, *, info):
    return info["correct"]


async def concurrent(answer, *, info):
    """Ends only when the whole group has been called."""
    CALLS.append(answer)
    while len(CALLS) < 3:
        await asyncio.sleep(0.001)
    return 1.0


async def async_group(answers, *, infos):
    await asyncio.sleep(0)
    return [1] * len(answers)


async def loop_number(answer):
    """The number of the event loop that it runs in."""
    CALLS.append(asyncio.get_running_loop())
    return CALLS.index(CALLS[-1])


class Judge:
    def __init__(self):
        self.loops: set[int] = set()

    async def __call__(self, answer):
        self.loops.add(id(asyncio.get_running_loop()))
        return 1.0

    def method(self, answer, strength=2.0):
        return strength


judge = Judge()
partly = partial(judge.method, strength=3.0)


def of_a_level(answer, *, info, level):
    CALLS.append(level)
    return float(info["correct"]) * level


def with_tests(answers, test_cases, level=7, **more):
    """As users of TRL write it: a column by its name, one with a default, and the rest."""
    CALLS.append((test_cases, level, sorted(more)))
    test_cases["inputs"].append("changed")  # theirs to change
    return [float(len(test_cases["inputs"]))] * len(answers)


def renamed_columns(answer, *, gold, style=None, **more):
    CALLS.append((gold, style, more.get("index")))
    return 0.0


# -- Hostile ones: for the first answer of a group, or for all of it --------------------------


def raises(answer, *, info):
    raise ValueError("no reward today")


def exits(answer):
    sys.exit(3)


def gives_none(answer):
    return None


def gives_nan(answer):
    return float("nan")


def gives_inf(answer):
    return np.inf


def gives_text(answer):
    return "1.0"


def gives_huge(answer):
    return 10**400


def gives_array(answer):
    return np.zeros(2)


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no repr")


def gives_object(answer):
    return Unprintable()


def sleeps(answer):
    CALLS.append(answer)
    RELEASE.wait(60)
    return 1.0


def wrong_length(answers):
    return [1.0] * (len(answers) + 1)


def one_for_all(answers):
    return 1.0


def no_end(answers):
    while True:
        yield 1.0


def lies(answers):
    class Short(list):  # says another length than it has
        def __len__(self):
            return len(answers)

    return Short()


def group_raises(answers):
    raise KeyError("x")


async def async_raises(answer):
    raise ValueError("no reward today")


async def async_exits(answer):
    raise SystemExit(3)


async def async_sleeps(answer):
    await asyncio.sleep(60)


async def async_stubborn(answer):
    while not RELEASE.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue


async def async_blocks(answer):
    RELEASE.wait(60)


def only_wrong_raise(answer, *, info):
    if not info["correct"]:
        raise ValueError("wrong answers are beneath me")
    return 1.0


def slow_at_the_end(answer, *, info):
    CALLS.append(answer)
    if len(CALLS) == 3:
        RELEASE.wait(60)
    return 0.5


def one_problem_raises(answer, *, problem):
    if problem == CALLS[0]:
        raise ValueError("not this one")
    return 1.0


def times_out_by_itself(answer):
    time.sleep(0)
    raise TimeoutError("of the user's own request")


# -- What validation refuses ------------------------------------------------------------------


def no_parameter():
    return 1.0


def another_name(text, *, problem):
    return 1.0


def unknown_keyword(answer, *, gold):
    return 1.0


def singular(answers, *, info):
    return [1.0] * len(answers)


def by_keyword(*, answer):
    return 1.0


number = 3
