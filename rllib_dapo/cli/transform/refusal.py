"""Why an answer was not turned into an integer."""

from __future__ import annotations

from typing import Final

from rllib_dapo.errors import DAPOError

SEVERAL_ANSWERS: Final = "several answers"
NOT_SIMPLIFIED: Final = "not simplified"
NOT_EVALUATED: Final = "not evaluated"
IRRATIONAL_DENOMINATOR: Final = "root or pi in a denominator"
UNSUPPORTED_ROOT: Final = "nested or higher root"
SYMBOLIC: Final = "symbolic letters"
WORDS: Final = "words"
RELATION: Final = "equation or inequality"
SEVERAL_READINGS: Final = "several readings"
UNBOUNDED: Final = "infinite or undefined"
UNKNOWN_FORM: Final = "unknown form"
TOO_LARGE: Final = "too large"
UNREADABLE: Final = "unreadable row"


class RefusalError(DAPOError):
    """An answer that no rule may turn into an integer.

    Args:
        reason: one of the constants of this module; the summary counts by it.
        detail: what exactly stood in the way.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[RefusalError], tuple[str, str]]:
        """Pickle by parts."""
        return type(self), (self.reason, self.detail)
