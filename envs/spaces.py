"""A text space that does not restrict the characters.

`gymnasium.spaces.Text` by default contains only 62 letters and digits, so a plus sign, a newline
or LaTeX is "not in the space". Problems and completions may contain any character.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

_SAMPLE_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 +-*/=().,:?\n\\{}$^_√×÷−½答案"


class UnicodeText(gym.Space[str]):
    """The space of all strings of at most `max_length` unicode characters.

    Args:
        max_length: the upper bound on `len(text)`, in characters (code points).
        seed: the seed of the space's own generator, which only `sample()` uses.
    """

    def __init__(self, max_length: int = 1_000_000, *, seed: int | None = None) -> None:
        if max_length < 1:
            raise ValueError(f"max_length={max_length}: a text space needs at least 1 character")
        self.max_length = int(max_length)
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Return False, because a text has no array form of fixed size."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Draw a random string of up to 32 characters, which may be signs or not ASCII."""
        if mask is not None or probability is not None:
            raise ValueError("UnicodeText.sample takes neither mask nor probability")
        length = int(self.np_random.integers(0, min(self.max_length, 32) + 1))
        picks = self.np_random.integers(0, len(_SAMPLE_ALPHABET), size=length)
        return "".join(_SAMPLE_ALPHABET[i] for i in picks)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a `str` (or numpy string) within the length bound."""
        return isinstance(x, (str, np.str_)) and len(x) <= self.max_length

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and other.max_length == self.max_length

    __hash__ = None  # type: ignore[assignment]  # equal by value and mutable, as in gymnasium
