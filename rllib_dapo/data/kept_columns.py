"""Columns beside the problem and the ground truth that are kept for reward functions."""

from __future__ import annotations

import datetime
import difflib
import json
import math
from array import array
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from rllib_dapo.data.row_values import RowError, lookup
from rllib_dapo.errors import DataError, SettingError

Kept = Mapping[str, bool]
"""The names of the columns to keep, each with whether the data set must have it. Dots lead into
mappings."""


def read_kept(columns: Kept | Sequence[str] | None) -> Kept:
    """Read an argument `columns`: a list of names that must exist, or a `Kept`.

    Raises:
        SettingError: it has another form.
    """
    if isinstance(columns, Mapping):
        named: dict[Any, Any] = dict(columns)
    else:
        listed = columns is None or isinstance(columns, list | tuple)
        named = dict.fromkeys(map(_name, columns or ()) if listed else (None,), True)
    if all(isinstance(k, str) and k.strip() and isinstance(v, bool) for k, v in named.items()):
        return named
    raise SettingError(
        f"columns={columns!r:.80}: give a list of names, such as [level, extra_info]", "columns"
    )


def _name(value: object) -> str | None:
    return value if isinstance(value, str) else None


class KeptColumns:
    """Collects the values of the kept columns, each different combination once.

    Args:
        kept: which columns.
    """

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._present: tuple[str, ...] = ()
        self._begun = False
        self._found: dict[str, None] = {}  # the columns that some file has, in order
        self._numbers: dict[str, int] = {}  # from the values of a row, as JSON, to their number
        self._rows = array("I")

    def heads(self, present: Sequence[str]) -> tuple[str, ...]:
        """The top-level columns to read from a file, given those that it has.

        Raises:
            DataError: one is missing that must exist.
        """
        self._begun = False
        here = set(present)
        self._present = tuple(n for n in self._kept if n in here or n.split(".")[0] in here)
        for name, required in self._kept.items():
            if required and name not in self._present:
                near = difflib.get_close_matches(name, present, n=1, cutoff=0.4)
                hint = f"; the nearest is {near[0]!r}" if near else ""
                raise DataError(
                    f"no column {name!r}, which a reward function asks for; columns present:"
                    f" {', '.join(map(repr, present)) or 'none'}{hint}. Correct the name in the"
                    " function's parameters (or in `columns` of its entry), or give the parameter"
                    " a default"
                )
        return tuple(n if n in here else n.split(".")[0] for n in self._present)

    def read(self, row: Mapping[str, Any]) -> str:
        """The values of a row, as JSON. What a row lacks is null, but not in a file's first row.

        Raises:
            RowError: a value is no plain value, or the first row lacks a part of a mapping.
        """
        values: dict[str, Any] = {}
        for name in self._present:
            try:
                value = lookup(row, name)
            except RowError:
                if not self._begun and self._kept[name] and "." in name:
                    raise
                value = None
            values[name] = _plain(value, name)
        self._begun = True
        self._found.update(dict.fromkeys(self._present))
        return json.dumps(values)

    def add(self, values: str) -> None:
        """Keep the values of a row."""
        if self._kept:
            self._rows.append(self._numbers.setdefault(values, len(self._numbers)))

    def finish(self) -> ColumnValues:
        """The values of all rows that were added."""
        rows = np.array(self._rows, dtype=np.uint32)
        return ColumnValues(tuple(self._found), tuple(self._numbers), rows)


class ColumnValues:
    """The values of the kept columns of each row.

    Args:
        names: the columns that the data set has.
        different: each different combination of values, as JSON.
        rows: uint32[rows], for each row the number of its combination; empty if no column is kept.
    """

    def __init__(
        self, names: tuple[str, ...], different: tuple[str, ...], rows: npt.NDArray[np.uint32]
    ) -> None:
        self.names = names
        self._different = different
        self._rows = rows

    def of(self, row: int) -> dict[str, Any]:
        """The values of a row by column; new objects with each call."""
        if not len(self._rows):
            return {}
        values: dict[str, Any] = json.loads(self._different[self._rows[row]])
        return values


def _plain(value: Any, name: str) -> Any:
    """The value as JSON can hold it.

    Raises:
        RowError: it cannot.
    """
    try:
        return _as_json(value)
    except (TypeError, RecursionError) as error:
        raise RowError(
            name,
            f"{error or 'nested too deeply'}; reward functions can ask for texts, numbers, lists"
            " and mappings only",
        ) from error


def _as_json(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else value  # a missing value of pandas
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(inner) for inner in value]
    raise TypeError(f"found {value!r:.40} ({type(value).__name__})")
