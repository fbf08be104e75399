"""The loop around a `DynamicSampler`, with answers made up, shared by its tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from strategies import make_group

from rllib_dapo.rollout.dynamic_sampling import DynamicSampler
from rllib_dapo.types import Group, ProblemRef

RIGHT, WRONG, MIXED, BROKEN = [1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [math.nan, 1.0]
LETTERS = {"m": MIXED, "w": WRONG, "r": RIGHT, "f": BROKEN}
ENDLESS = 10_000
"""As `max_problems`: a limit that no test reaches."""


def problems(*at: int) -> list[ProblemRef]:
    return [ProblemRef(position, position, position) for position in at]


def positions(groups: Iterable[Group]) -> list[int]:
    return [group.ref.position for group in groups]


def asked_at(refs: Iterable[ProblemRef]) -> list[int]:
    return [ref.position for ref in refs]


def graded(group: Group, *matched_by: str) -> Group:
    """The group with answers whose verdicts came about in these ways."""
    completions = [
        replace(c, info={"matched_by": way})
        for c, way in zip(group.completions, matched_by, strict=True)
    ]
    return replace(group, completions=tuple(completions))


def ask(sampler: DynamicSampler, start: int = 0) -> list[int]:
    """Ask for what is wanted now; returns the positions."""
    asked = list(range(start, start + sampler.demand))
    sampler.expect(problems(*asked))
    return asked


def sample(
    sampler: DynamicSampler,
    scores_of: Callable[[int], Sequence[Any]],
    random: Random | None = None,
    start: int = 0,
    version: int = 0,
) -> list[int]:
    """Sample until the sampler is done, and let finish what was asked.

    Args:
        sampler: a fresh one.
        scores_of: scores of the problem at a position.
        random: chooses which answer comes next and when to ask; None: in order, asking at once.
        start: position of the first problem.
        version: of the weights that answer.

    Returns:
        The positions asked for.
    """
    asked: list[int] = []
    in_flight: list[int] = []
    while not sampler.done or in_flight:
        if random is None or not in_flight or random.random() < 0.5:
            new = ask(sampler, start + len(asked))
            asked += new
            in_flight += new
        if in_flight:
            place = 0 if random is None else random.randrange(len(in_flight))
            position = in_flight.pop(place)
            group = make_group(position, scores_of(position))
            sampler.add(replace(group, weights_version=version))
    return asked
