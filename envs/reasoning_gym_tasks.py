"""Which tasks of reasoning-gym can be trusted, and which questions of them.

A task is on the list when its answer is one number that the question determines. Some
generators go wrong now and then; `exact` is asked of every question, and one that fails
is never posed. Nothing of reasoning-gym is imported here.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from rllib_dapo.envs.exact_expression import exact_value
from rllib_dapo.errors import SettingError

Entry = Mapping[str, Any]
"""What reasoning-gym hands over: `question`, `answer`, `metadata`."""


def _equals_expression(entry: Entry) -> bool:
    """Whether the answer is the expression's value.

    `basic_arithmetic` rounds inexact quotients (7 questions in 1,000), and without
    parentheses it works from left to right, `2 + 3 * 4 = 20` (6 questions in 10).
    """
    return exact_value(entry["metadata"]["expression"]) == Fraction(entry["answer"])


def _has_one_solution(entry: Entry) -> bool:
    """Whether the unknown is in the equation: now and then it cancels, `0 = 0`."""
    return entry["metadata"]["variable"] in entry["metadata"]["equation"]


def _has_one_case(entry: Entry) -> bool:
    """Whether the letter occurs in one case only: the question does not say whether A is an a."""
    letter = entry["metadata"]["target_letter"]
    return not any(letter.upper() in word for word in entry["metadata"]["span"])


def _always(entry: Entry) -> bool:
    del entry
    return True


TASKS: Mapping[str, Callable[[Entry], bool]] = MappingProxyType(
    {
        "basic_arithmetic": _equals_expression,
        "chain_sum": _equals_expression,
        "count_bits": _always,
        "count_primes": _always,
        "decimal_chain_sum": _equals_expression,
        "gcd": _always,
        "gsm_symbolic": _always,
        "largest_island": _always,
        "lcm": _always,
        "leg_counting": _always,
        "letter_counting": _has_one_case,
        "products": _equals_expression,
        "simple_equations": _has_one_solution,
    }
)
"""The tasks that may be posed; each says whether the answer to a question is exact."""

_EVALUATES = "its scorer runs answers as code"
REFUSED: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        (
            "binary_matrix",
            "countdown",
            "intermediate_integration",
            "n_queens",
            "polynomial_multiplication",
            "puzzle24",
            "simple_integration",
            "spiral_matrix",
            "string_insertion",
        ),
        _EVALUATES,
    )
    | {
        "aiw": "its questions can be read in several ways",
        "bitwise_arithmetic": "its answers are hexadecimal, which the grader does not read",
        "codeio": "it runs programs to make its questions",
        "coin_flip": "its answers are rounded",
        "decimal_arithmetic": "its answers are rounded",
        "number_sequence": "a sequence may be continued in several ways",
        "power_function": "its answers are rounded",
        "rectangle_count": "overlapping drawings hide rectangles",
        "simple_geometry": "its convex polygons have angles above 180 degrees",
    }
)
"""Tasks that are refused for a reason worth telling."""


def check_task(task: str) -> str:
    """`task`, if it is on the list.

    Raises:
        SettingError: it is not; says why, or names the nearest.
    """
    if task in TASKS:
        return task
    known = ", ".join(TASKS)
    if task in REFUSED:
        what = f"refused, because {REFUSED[task]}."
    else:
        near = difflib.get_close_matches(str(task), TASKS, n=1, cutoff=0.0)
        what = f"not on the list of tasks with one exact answer; did you mean {near[0]!r}?"
    raise SettingError(f"env_config.task={task!r}: {what} Use one of {known}", "env_config.task")
