"""List the tasks of reasoning-gym that can be trusted, and check each of their questions.

A task is on the list if its answer is one number that the question determines. Some generators
go wrong now and then, so every question is checked, and one that fails is never posed. This module
imports nothing from reasoning-gym.
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
"""An item of a data set of reasoning-gym: `question`, `answer`, `metadata`."""


def _equals_expression(entry: Entry) -> bool:
    """Return whether the answer is the value of the expression.

    `basic_arithmetic` rounds inexact quotients (7 questions in 1,000), and without parentheses it
    works from left to right, as in `2 + 3 * 4 = 20` (6 questions in 10).
    """
    return exact_value(entry["metadata"]["expression"]) == Fraction(entry["answer"])


def _has_one_solution(entry: Entry) -> bool:
    """Return whether the equation contains the unknown; sometimes it cancels (`0 = 0`)."""
    return entry["metadata"]["variable"] in entry["metadata"]["equation"]


def _has_one_case(entry: Entry) -> bool:
    """Return whether the letter occurs as a small letter only.

    The question does not say whether a capital A counts as an a.
    """
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
"""The tasks that may be posed, each with its check that the answer to a question is exact."""

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
"""The tasks that are refused, each with its reason."""


def check_task(task: str) -> str:
    """Return `task` if it is on the list.

    Raises:
        SettingError: it is not; the message gives the reason or the nearest name.
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
