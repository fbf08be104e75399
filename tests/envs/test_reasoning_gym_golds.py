"""The ground truths of reasoning-gym's tasks, worked out anew from their questions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from rllib_dapo.envs.exact_expression import exact_value
from rllib_dapo.envs.reasoning_gym import ReasoningGymEnv

installed = pytest.mark.skipif(
    find_spec("reasoning_gym") is None, reason="the extra is not installed"
)


def make(task: str, **config: Any) -> ReasoningGymEnv:
    return ReasoningGymEnv(task=task, **config)


def pose(env: ReasoningGymEnv, index: int) -> tuple[str, str]:
    """The problem with this index and its gold."""
    question, _ = env.reset(options={"index": index})
    return question, env.step("")[4]["expected"]


def numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"[0-9]+", text)]


def count_primes(question: str) -> int:
    low, high = numbers(question)
    return sum(
        n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1)) for n in range(low, high + 1)
    )


def largest_island(question: str) -> int:
    rows = [line.split() for line in question.splitlines() if re.fullmatch(r"[01]( [01])*", line)]
    left = {(i, j) for i, row in enumerate(rows) for j, cell in enumerate(row) if cell == "1"}
    largest = 0
    while left:
        stack, size = [left.pop()], 0
        while stack:
            i, j = stack.pop()
            size += 1
            near = {(i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)} & left
            left -= near
            stack += near
        largest = max(largest, size)
    return largest


def count_letters(question: str) -> int:
    match = re.search(r'letter "(.)" appear in the text: "(.*)"', question, re.DOTALL)
    assert match is not None
    assert match[1].upper() == match[1] or match[1].upper() not in match[2]
    return match[2].count(match[1])


def solve(question: str) -> Fraction:
    match = re.search(r"(?:: |)([^:]*[a-z][^:]*) = (-?[0-9]+)", question.rpartition(": ")[2])
    assert match is not None
    left, right = match[1], Fraction(match[2])
    letter = re.search("[a-z]", left)
    assert letter is not None
    at_0 = exact_value(left.replace(letter[0], "(0)"))
    at_1 = exact_value(left.replace(letter[0], "(1)"))
    assert at_0 is not None
    assert at_1 is not None
    return (right - at_0) / (at_1 - at_0)


def expression(question: str) -> Fraction | None:
    match = re.search(r"(?:problem|multiplication|Calculate):? ([-+*/()0-9. ]*[0-9)])", question)
    assert match is not None
    return exact_value(match[1])


RECOMPUTED: dict[str, Callable[[str], object]] = {
    "basic_arithmetic": expression,
    "chain_sum": expression,
    "count_bits": lambda q: numbers(q)[-1].bit_count(),
    "count_primes": count_primes,
    "decimal_chain_sum": expression,
    "gcd": lambda q: math.gcd(*numbers(q)),
    "largest_island": largest_island,
    "lcm": lambda q: math.lcm(*numbers(q)),
    "letter_counting": count_letters,
    "products": expression,
    "simple_equations": solve,
}


@installed
@pytest.mark.parametrize("task", RECOMPUTED)
def test_the_gold_is_what_the_question_says(task: str) -> None:
    env = make(task, task_config={"max_n": 300} if task == "count_primes" else {})
    for index in range(100):
        question, gold = pose(env, index)
        assert RECOMPUTED[task](question) == Fraction(gold), question


@installed
def test_generators_that_go_wrong_are_drawn_again() -> None:
    # Without parentheses the generator works from left to right: most of its golds are wrong.
    env = make("basic_arithmetic", task_config={"allow_parentheses": False, "min_terms": 3})
    for index in range(200):
        question, gold = pose(env, index)
        assert expression(question) == Fraction(gold)


@given(
    st.recursive(
        st.integers(0, 99).map(str),
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*", "/", " + ", " * "]), inner).map(
                "".join
            ),
            inner.map(lambda e: f"({e})"),
            inner.map(lambda e: f"-{e}"),
        ),
        max_leaves=8,
    )
)
@examples(300)
def test_expressions_have_the_usual_precedence(text: str) -> None:
    # Python's own arithmetic on exact fractions, for expressions made here.
    source = re.sub(r"[0-9]+", lambda m: f"F({int(m[0])})", text)
    try:
        expected = eval(source, {"F": Fraction})  # noqa: S307 - of numbers and signs made above
    except ZeroDivisionError:
        expected = None
    assert exact_value(text) == expected


@pytest.mark.parametrize("text", ["", "1+", "(1", "1)", "1 2", "2**3", "x", "1e5", "__import__"])
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any wording
        exact_value(text)
