"""The exceptions of this package, which all derive from `DAPOError`.

Every message names the setting (or the file and row) at fault, the value found and a remedy.
"""

from __future__ import annotations

from typing import NoReturn


class DAPOError(Exception):
    """Base class of all exceptions that this package raises on purpose."""


class SettingError(DAPOError, ValueError):
    """A setting is unknown or impossible; raised before anything expensive starts.

    Args:
        message: names the setting, its value and the remedy.
        setting: the setting's name (dotted where it is nested). Callers who read the setting
            from a file use it to name the line.
    """

    def __init__(self, message: str, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting

    def __reduce__(self) -> tuple[type[SettingError], tuple[str, str | None]]:
        """Pickle the setting's name too, since Ray passes errors between processes."""
        return type(self), (str(self), self.setting)


def refuse(name: str, value: object, remedy: str) -> NoReturn:
    """Raise a `SettingError` that names a setting, its value and the remedy.

    Args:
        name: the setting, under the name that users write.
        value: the value that is refused.
        remedy: what to write instead.

    Raises:
        SettingError: always.
    """
    raise SettingError(f"{name}={value!r}: {remedy}", name)


class DataError(DAPOError, ValueError):
    """A data set cannot be read; the message names the file, the row and the column."""


class ExperimentFileError(DAPOError, ValueError):
    """An experiment file cannot be understood; the message names the file and the line."""


class EngineError(DAPOError, RuntimeError):
    """The inference engine failed, or it does not have the learner's weights."""


class RewardError(DAPOError, RuntimeError):
    """A reward function failed where `reward_failure` is `error`, or too many of its calls hang."""


class SamplingError(DAPOError, RuntimeError):
    """Dynamic sampling reached its limit before the batch was full."""


class TrainingError(DAPOError, RuntimeError):
    """The learner cannot go on, for instance because gradients stay NaN or infinite."""
