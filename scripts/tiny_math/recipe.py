"""What the base model is taught: worked answers to sums, careful and careless.

A base model that reinforcement learning can lift must hold the ability and use it only
now and then. So the answers are drawn from a mixture of styles that the prompt does not
give away; whoever samples the model samples the style with it.

    worked   12+35=47        the steps, each slipped with some probability; then any
             47-7=40         number of checks (some run on past any sensible length);
             Check: 40+7=47  then the answer that the steps led to
             Answer: 40
    guess    Answer: 52      no steps; nearly always wrong
    hasty    =38             the whole chain in one go; nearly always wrong
             Answer: 38
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rllib_dapo.envs.arithmetic import Sum, sum_at

Style = Literal["worked", "guess", "hasty"]


@dataclass(frozen=True, slots=True)
class Mixture:
    """How often the answers are of which kind.

    Attributes:
        guess: share of answers that are a bare guess.
        hasty: share that writes the chain's value in one go; the rest is worked.
        slip: probability that a worked step's result is wrong.
        lucky: probability that a guess or a hasty value is right.
        checks: probabilities of 0, 1, 2, … check lines in a worked answer.
    """

    guess: float
    hasty: float
    slip: float
    lucky: float
    checks: tuple[float, ...]


CLEAN = Mixture(guess=0.0, hasty=0.0, slip=0.0, lucky=0.0, checks=(0.7, 0.2, 0.1))
"""Only right answers, every step written: the arithmetic is learned from these."""

BASE = Mixture(
    guess=0.45,
    hasty=0.10,
    slip=0.20,
    lucky=0.05,
    checks=(0.55, 0.18, 0.08, 0.07, 0.06, 0.06),
)
"""The mixture the finished model imitates."""


@dataclass(frozen=True, slots=True)
class Example:
    """One problem with one answer, as the model sees them.

    Attributes:
        problem: the sum itself.
        prompt: its text and a newline.
        answer: the text taught as the answer; an EOS follows it.
        style: what kind of answer it is.
        right: whether the answer line states the sum's value.
    """

    problem: Sum
    prompt: str
    answer: str
    style: Style
    right: bool


def slipped(value: int, rng: np.random.Generator) -> int:
    """A wrong result such as a careless hand makes of `value`; never negative."""
    swapped = int(str(value)[::-1])
    candidates = {value - 1, value + 1, value - 10, value + 10, value + 2, value - 2, swapped}
    wrong = sorted(c for c in candidates if c >= 0 and c != value)
    return int(rng.choice(wrong))


def guessed(problem: Sum, rng: np.random.Generator, lucky: float) -> int:
    """A value for the whole chain, made up rather than worked out."""
    right = problem.answer
    if rng.random() < lucky:
        return right
    return max(right + int(rng.choice([-1, 1])) * int(rng.integers(1, 26)), 0)


def worked(problem: Sum, rng: np.random.Generator, slip: float, checks: int) -> tuple[str, int]:
    """The steps, `checks` check lines and the answer line; also the value arrived at."""
    lines: list[str] = []
    back: list[str] = []  # the same steps undone, last one first
    value = problem.terms[0]
    for sign, term in zip(problem.signs, problem.terms[1:], strict=True):
        before = value
        value = before + term if sign == "+" else before - term
        if rng.random() < slip or value < 0:  # after a slip a chain may fall below zero
            value = slipped(max(value, 0), rng)
        lines.append(f"{before}{sign}{term}={value}")
        undo = "-" if sign == "+" else "+"
        back.insert(0, f"Check: {value}{undo}{term}={before}")
    lines += [back[i % len(back)] for i in range(checks)]
    return "\n".join([*lines, f"Answer: {value}"]), value


def example(index: int, seed: int, mixture: Mixture) -> Example:
    """Training example number `index`: a pure function of its arguments."""
    problem = sum_at(index, split="train")
    rng = np.random.default_rng([seed, index])
    draw = rng.random()
    style: Style
    if draw < mixture.guess:
        style, value = "guess", guessed(problem, rng, mixture.lucky)
        answer = f"Answer: {value}"
    elif draw < mixture.guess + mixture.hasty:
        style, value = "hasty", guessed(problem, rng, mixture.lucky)
        answer = f"={value}\nAnswer: {value}"
    else:
        checks = int(rng.choice(len(mixture.checks), p=mixture.checks))
        style = "worked"
        answer, value = worked(problem, rng, mixture.slip, checks)
    return Example(problem, problem.text + "\n", answer, style, value == problem.answer)
