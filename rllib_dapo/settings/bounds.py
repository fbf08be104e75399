"""The vocabulary in which a setting says which values it takes.

A setting is a field with a type, bounds (those of `annotated_types`) and a remedy:

    clip_low: Annotated[float, Gt(0), Lt(1), Remedy("use a number between 0 and 1")] = 0.2

`settings.checks` refuses every value that does not fit, and names the remedy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge
from pydantic import AllowInfNan


@dataclass(frozen=True, slots=True)
class Remedy:
    """What a user should write instead of a value that is refused.

    Attributes:
        text: one phrase in the imperative. `{settings.NAME}` stands for the value of another
            setting.
    """

    text: str


FINITE = AllowInfNan(False)
"""Neither infinite nor NaN. The bounds alone refuse NaN, but let infinity pass."""

Count = Annotated[int, Ge(1), Remedy("use 1 or more")]
Tokens = Annotated[int, Ge(1), Remedy("use 1 token or more")]
Threads = Annotated[int | None, Ge(1), Remedy("use 1 or more, or null for what the process has")]
Processors = Annotated[float, Ge(0), Remedy("use 0 or more; fractions such as 0.5 are fine")]
