"""What the base model is taught: careful and careless completions of sums.

Reinforcement learning can improve a base model that is able to solve the problems but does
so only sometimes. So the completions are drawn from a mixture of styles. The prompt does not
tell the style, so sampling from the model samples a style, too.

    worked   12+35=47        the steps, each of them wrong with some probability; then any
             47-7=40         number of checks (some completions go on for very long);
             Check: 40+7=47  then the answer that the steps led to
             Answer: 40
    guess    Answer: 52      no steps; nearly always wrong
    hasty    =38             the whole sum in one step; nearly always wrong
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
    """The shares of the styles.

    Attributes:
        guess: share of completions that only guess.
        hasty: share of completions that write the sum's value in one step; the rest is
            worked.
        slip: probability that the result of a worked step is wrong.
        lucky: probability that a guess or a hasty value is correct.
        checks: probabilities of 0, 1, 2, … check lines in a worked completion.
    """

    guess: float
    hasty: float
    slip: float
    lucky: float
    checks: tuple[float, ...]


CLEAN = Mixture(guess=0.0, hasty=0.0, slip=0.0, lucky=0.0, checks=(0.7, 0.2, 0.1))
"""Only correct completions with every step, from which the model learns the arithmetic."""

BASE = Mixture(
    guess=0.45,
    hasty=0.10,
    slip=0.20,
    lucky=0.05,
    checks=(0.55, 0.18, 0.08, 0.07, 0.06, 0.06),
)
"""The mixture that the finished model imitates."""


@dataclass(frozen=True, slots=True)
class Example:
    """One problem with one completion, as the model sees them.

    Attributes:
        problem: the sum itself.
        prompt: its text and a newline.
        completion: the text that the model learns; an EOS follows it.
        style: the style of the completion.
        correct: whether the answer line states the sum's value.
    """

    problem: Sum
    prompt: str
    completion: str
    style: Style
    correct: bool


def slipped(value: int, rng: np.random.Generator) -> int:
    """Return a typical wrong result in place of `value`; it is never negative."""
    swapped = int(str(value)[::-1])
    candidates = {value - 1, value + 1, value - 10, value + 10, value + 2, value - 2, swapped}
    wrong = sorted(c for c in candidates if c >= 0 and c != value)
    return int(rng.choice(wrong))


def guessed(problem: Sum, rng: np.random.Generator, lucky: float) -> int:
    """Return a value of the whole sum that is correct with probability `lucky` only."""
    correct = problem.answer
    if rng.random() < lucky:
        return correct
    return max(correct + int(rng.choice([-1, 1])) * int(rng.integers(1, 26)), 0)


def worked(problem: Sum, rng: np.random.Generator, slip: float, checks: int) -> tuple[str, int]:
    """Return steps, `checks` check lines and the answer line; and the value of the answer."""
    lines: list[str] = []
    back: list[str] = []  # the inverse of each step, the last one first
    value = problem.terms[0]
    for sign, term in zip(problem.signs, problem.terms[1:], strict=True):
        before = value
        value = before + term if sign == "+" else before - term
        if rng.random() < slip or value < 0:  # after a slip the value may be below 0
            value = slipped(max(value, 0), rng)
        lines.append(f"{before}{sign}{term}={value}")
        undo = "-" if sign == "+" else "+"
        back.insert(0, f"Check: {value}{undo}{term}={before}")
    lines += [back[i % len(back)] for i in range(checks)]
    return "\n".join([*lines, f"Answer: {value}"]), value


def example(index: int, seed: int, mixture: Mixture) -> Example:
    """Return training example number `index`, which depends on the arguments only."""
    problem = sum_at(index, split="train")
    rng = np.random.default_rng([seed, index])
    draw = rng.random()
    style: Style
    if draw < mixture.guess:
        style, value = "guess", guessed(problem, rng, mixture.lucky)
        completion = f"Answer: {value}"
    elif draw < mixture.guess + mixture.hasty:
        style, value = "hasty", guessed(problem, rng, mixture.lucky)
        completion = f"={value}\nAnswer: {value}"
    else:
        checks = int(rng.choice(len(mixture.checks), p=mixture.checks))
        style = "worked"
        completion, value = worked(problem, rng, mixture.slip, checks)
    return Example(problem, problem.text + "\n", completion, style, value == problem.answer)
