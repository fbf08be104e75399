"""The exceptions of this package, one tree.

Every message names the setting (or file and row) at fault, the value found and a
remedy: an error that only says what went wrong leaves the user to guess the rest.
"""

from __future__ import annotations


class DAPOError(Exception):
    """Base class of everything this package raises on purpose."""


class SettingError(DAPOError, ValueError):
    """A setting is unknown or impossible; raised before anything expensive starts.

    Args:
        message: names the setting, its value and the remedy.
        setting: the setting's name (dotted where nested), so that whoever read it from a
            file can point at the line.
    """

    def __init__(self, message: str, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting

    def __reduce__(self) -> tuple[type[SettingError], tuple[str, str | None]]:
        """Pickle with the setting's name: errors cross process borders in Ray."""
        return type(self), (str(self), self.setting)


def refuse(name: str, value: object, remedy: str) -> None:
    """Raise a `SettingError` that names a setting, its value and the remedy."""
    raise SettingError(f"{name}={value!r}: {remedy}", name)


class DataError(DAPOError, ValueError):
    """A data set cannot be read; the message names file, row and column."""


class ExperimentFileError(DAPOError, ValueError):
    """An experiment file cannot be understood; the message names file and line."""


class EngineError(DAPOError, RuntimeError):
    """The inference engine failed, or its weights do not follow the learner's."""


class RewardError(DAPOError, RuntimeError):
    """A reward function failed and must not, or too many of its calls hang."""


class SamplingError(DAPOError, RuntimeError):
    """Dynamic sampling reached its limit without a full batch."""


class TrainingError(DAPOError, RuntimeError):
    """The learner cannot go on, for instance after repeated non-finite gradients."""
