"""Pose endless multi-step sums: a completion works out `12+35-7=?` and ends in `Answer: 40`.

Problem number `index` depends on `index` and the settings only, so the same index poses the same
problem in every process. One problem in ten, chosen by a hash of its text, belongs to the split
`validation`, which training never sees.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np

from rllib_dapo.envs.spaces import UnicodeText
from rllib_dapo.errors import SettingError

Split = Literal["train", "validation"]

_HELD_OUT_ONE_IN = 10
_ANSWER = re.compile(r"(?i)answer\s*:\s*([^\n]+)")
_INTEGER = re.compile(r"-?[0-9]{1,18}\Z")


def split_of(problem: str) -> Split:
    """Return the split that a generated problem belongs to, by a hash of its text."""
    held_out = zlib.crc32(problem.encode()) % _HELD_OUT_ONE_IN == 0
    return "validation" if held_out else "train"


@dataclass(frozen=True, slots=True)
class Sum:
    """A chain of additions and subtractions, evaluated from left to right.

    Attributes:
        terms: the operands, each at least 1.
        signs: "+" or "-" between each two neighbours, so there are len(terms) - 1 of them.
    """

    terms: tuple[int, ...]
    signs: tuple[str, ...]

    @property
    def text(self) -> str:
        """The problem as posed, for instance `12+35-7=?`."""
        tail = "".join(s + str(t) for s, t in zip(self.signs, self.terms[1:], strict=True))
        return f"{self.terms[0]}{tail}=?"

    @property
    def running(self) -> tuple[int, ...]:
        """The value after each term; the last one is the answer."""
        values = [self.terms[0]]
        for sign, term in zip(self.signs, self.terms[1:], strict=True):
            values.append(values[-1] + term if sign == "+" else values[-1] - term)
        return tuple(values)

    @property
    def answer(self) -> int:
        """The value of the whole chain."""
        return self.running[-1]

    @property
    def split(self) -> Split:
        """The split that this problem belongs to, by a hash of its text."""
        return split_of(self.text)


def draw_sum(rng: np.random.Generator, *, terms: int, max_operand: int) -> Sum:
    """Draw a chain whose running value never falls below zero.

    Args:
        rng: the source of randomness.
        terms: the number of operands, at least 2.
        max_operand: the largest operand; operands are uniform on 1 … max_operand.
    """
    operands = [int(x) for x in rng.integers(1, max_operand + 1, size=terms)]
    signs: list[str] = []
    value = operands[0]
    for operand in operands[1:]:
        plus = operand > value or bool(rng.integers(0, 2))
        signs.append("+" if plus else "-")
        value = value + operand if plus else value - operand
    return Sum(tuple(operands), tuple(signs))


def sum_at(index: int, *, split: Split, terms: int = 3, max_operand: int = 99) -> Sum:
    """Return problem number `index` of a split, which depends on the arguments only."""
    rng = np.random.default_rng([terms, max_operand, index])
    while True:  # nine tries in ten succeed for `train`, one in ten for `validation`
        drawn = draw_sum(rng, terms=terms, max_operand=max_operand)
        if drawn.split == split:
            return drawn


class ArithmeticEnv(gym.Env[str, str]):
    """One problem per episode; the action is the whole completion as text.

    `reset(options={"index": i})` poses problem i; without an index, one is drawn from the
    environment's own generator. `step(text)` ends the episode with +1 if the last `Answer: …` in
    the text is the correct integer, written as an integer, and -1 otherwise; its info holds
    `correct`, `extracted` and `expected`.

    Args:
        split: `train` or `validation` (one tenth of all problems, never trained on).
        terms: the number of operands in a problem, 2 … 8.
        max_operand: the largest operand, 2 … 9999; the smallest is 1.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium's own form
    num_problems: int | None = None  # endless

    def __init__(
        self,
        *,
        split: Split = "train",
        terms: int = 3,
        max_operand: int = 99,
        render_mode: str | None = None,
    ) -> None:
        if split not in get_args(Split):
            raise SettingError(f"env_config.split={split!r}: use 'train' or 'validation'")
        if not 2 <= terms <= 8:
            raise SettingError(f"env_config.terms={terms}: use 2 to 8 operands")
        if not 2 <= max_operand <= 9999:
            raise SettingError(f"env_config.max_operand={max_operand}: use 2 to 9999")
        self.split: Split = split
        self.terms = terms
        self.max_operand = max_operand
        self.render_mode = render_mode
        self.observation_space = UnicodeText(200)
        self.action_space = UnicodeText()
        self._problem: Sum | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Pose a problem; the observation is its text."""
        super().reset(seed=seed)
        index = (options or {}).get("index")
        if index is None:
            index = int(self.np_random.integers(0, 2**31))
        self._problem = sum_at(
            int(index), split=self.split, terms=self.terms, max_operand=self.max_operand
        )
        return self._problem.text, {"index": int(index)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Score a completion and end the episode."""
        if self._problem is None:
            raise RuntimeError("ArithmeticEnv.step was called before reset: call reset() first")
        matches = _ANSWER.findall(action[-300:])
        extracted = matches[-1].strip() if matches else None
        correct = (
            extracted is not None
            and _INTEGER.match(extracted) is not None
            and int(extracted) == self._problem.answer
        )
        info = {
            "correct": correct,
            "extracted": extracted,
            "expected": str(self._problem.answer),
        }
        return "", 1.0 if correct else -1.0, True, False, info
