"""Which columns of the data set the reward functions ask for.

A function asks for a column by a parameter of the column's name, or by the key `columns` of its
entry. Only columns that some function asks for are kept in memory.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllib_dapo.errors import SettingError


@dataclass(frozen=True, slots=True)
class AskedColumn:
    """A column that a reward function asks for.

    Attributes:
        keyword: the keyword by which the function gets the value.
        column: the name of the column; dots lead into mappings (`extra_info.index`).
        required: False if the function has a default, which then stands for a column that the
            data set does not have.
    """

    keyword: str
    column: str
    required: bool = True


def read_declared(value: Any, where: str) -> dict[str, str]:
    """Read the key `columns` of an entry: a list of names, or a mapping from keyword to name.

    Args:
        value: what the user wrote; None asks for nothing.
        where: the name of the setting, for messages.

    Returns:
        The name of the column for each keyword.

    Raises:
        SettingError: the value has another form, or a name cannot be a keyword of Python.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        declared = dict(value)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        declared = {name: name for name in value}
    else:
        raise SettingError(
            f"{where}={value!r:.80}: give a list of names, such as [level], or a mapping from"
            " keyword to column, such as {tests: extra_info.tests}",
            "reward_functions",
        )
    for keyword, column in declared.items():
        if not isinstance(column, str) or not column.strip():
            raise SettingError(
                f"{where}: {column!r:.80} cannot name a column; use a text", "reward_functions"
            )
        if not isinstance(keyword, str) or not keyword.isidentifier():
            raise SettingError(
                f"{where}: {keyword!r:.80} cannot be a keyword of a function; write"
                f" {{a_name: {column}}}",
                "reward_functions",
            )
    return declared


def asked_columns(columns: Iterable[AskedColumn]) -> dict[str, bool]:
    """The names of the columns, each with whether some function cannot do without it."""
    asked: dict[str, bool] = {}
    for column in columns:
        asked[column.column] = asked.get(column.column, False) or column.required
    return asked


def check_offered(columns: Iterable[AskedColumn], offered: Mapping[str, Any], env: str) -> None:
    """Refuse a column that the environment does not offer.

    Args:
        columns: what the functions ask for.
        offered: the entry `columns` of the info that the environment's `reset` returns.
        env: the name of the environment.

    Raises:
        SettingError: a column is missing that a function cannot do without.
    """
    for asked in columns:
        if not asked.required or asked.column in offered:
            continue
        near = difflib.get_close_matches(asked.column, list(offered), n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise SettingError(
            f"reward_functions: a function asks for the column {asked.column!r}, and env={env!r}"
            f" does not offer it; {hint}Its columns are {', '.join(offered) or 'none'}. Give the"
            f" parameter {asked.keyword!r} a default, or offer the value as"
            " info['columns'] in reset",
            "reward_functions",
        )
