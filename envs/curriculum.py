"""Read a curriculum: a problem's place in the run decides its level of difficulty."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllib_dapo.errors import SettingError

_KEYS = ("until", "task_config")


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a curriculum.

    Attributes:
        until: the first position that belongs to the next level; None for the last level.
        task_config: the settings of the task that this level changes.
    """

    until: int | None
    task_config: Mapping[str, Any]


def read_levels(curriculum: Sequence[Mapping[str, Any]]) -> tuple[Level, ...]:
    """Read the setting `curriculum`; if it is empty, there is one level without settings.

    Raises:
        SettingError: a level is malformed, or the levels are not in ascending order.
    """
    levels = [_read(level, number) for number, level in enumerate(curriculum)]
    if not levels:
        return (Level(None, {}),)
    for number, level in enumerate(levels[:-1]):
        following = levels[number + 1].until
        name = f"env_config.curriculum[{number}].until"
        if level.until is None:
            raise SettingError(f"{name}: every level but the last needs one; add it", name)
        if following is not None and following <= level.until:
            raise SettingError(
                f"{name}={level.until}: the next level ends at {following}; give ascending numbers",
                name,
            )
    return tuple(levels)


def level_at(levels: Sequence[Level], position: int) -> int:
    """Return the number of the level at `position`; past the end, it is the last level."""
    for number, level in enumerate(levels):
        if level.until is None or position < level.until:
            return number
    return len(levels) - 1


def _read(level: object, number: int) -> Level:
    name = f"env_config.curriculum[{number}]"
    if not isinstance(level, Mapping):
        raise SettingError(
            f"{name}={level!r:.60}: a level is a mapping with {' and '.join(_KEYS)}", name
        )
    for key in level:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, n=1, cutoff=0.0)[0]
            raise SettingError(
                f"{name}.{key}: a level has no such key; did you mean {near!r}? The task's own"
                " settings belong in task_config",
                f"{name}.{key}",
            )
    until, task_config = level.get("until"), level.get("task_config", {})
    if until is not None and (isinstance(until, bool) or not isinstance(until, int) or until < 1):
        raise SettingError(f"{name}.until={until!r}: use a number of problems above 0", name)
    if not isinstance(task_config, Mapping):
        raise SettingError(f"{name}.task_config={task_config!r:.60}: use a mapping", name)
    return Level(until, dict(task_config))
