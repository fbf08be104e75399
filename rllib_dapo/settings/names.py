"""The names of settings: all present names, renamed ones, and suggestions for unknown ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

from rllib_dapo.errors import SettingError
from rllib_dapo.settings.general import DAPOSettings
from rllib_dapo.settings.learner import LearnerSettings
from rllib_dapo.settings.rollout import RolloutSettings
from rllib_dapo.settings.run import RLlibSettings, RunSettings

SETTING_CLASSES = (DAPOSettings, RolloutSettings, LearnerSettings)
"""The classes that define DAPO's settings, in the order in which the documentation lists them."""

RENAMED: Mapping[str, str] = {
    "max_response_length": "max_completion_length",
    "max_group_age": "max_staleness",
    "rollout_lead": "async_level",
}
"""What earlier versions called a setting, and what it is called now."""


def setting_names() -> tuple[str, ...]:
    """The names of DAPO's settings, in the order of `SETTING_CLASSES` and their definition."""
    return tuple(name for kind in SETTING_CLASSES for name in kind.__annotations__)


@cache
def setting_kinds() -> Mapping[str, Any]:
    """The annotated type of each setting: DAPO's own, then those of RLlib that DAPO reads."""
    hints = get_type_hints(RunSettings, include_extras=True)
    names = (*setting_names(), *(field.name for field in fields(RLlibSettings)))
    return {name: hints[name] for name in names}


def written_name(name: str) -> str:
    """The name under which users write a setting: `model` for `language_model`."""
    return "model" if name == "language_model" else name


def refuse_unknown(given: Iterable[str], known: Iterable[str], *, also: Iterable[str] = ()) -> None:
    """Raise for the first name that is not known.

    Args:
        given: the names that a user wrote.
        known: the names that are allowed.
        also: names to suggest beside those.

    Raises:
        SettingError: with the present name of a setting that was renamed, or else with the
            name that is nearest to the unknown one.
    """
    allowed = set(known)
    for key in map(str, given):
        if key in allowed:
            continue
        if key in RENAMED:
            raise SettingError(f"`{key}` is now called `{RENAMED[key]}`; write that name", key)
        names = sorted(name for name in {*allowed, *also} if not name.startswith("_"))
        near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
        hint = f" Did you mean `{near[0]}`?" if near else ""
        raise SettingError(
            f"`{key}` is not a setting of DAPO or RLlib.{hint} DAPO's settings are listed in "
            "rllib_dapo/settings/ and docs/settings.md.",
            key,
        )
