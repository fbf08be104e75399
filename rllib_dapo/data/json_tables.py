"""Rows out of one JSON object that holds a table, in the forms (`orient`) that pandas writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def rows_of_table(data: Mapping[str, Any]) -> list[dict[str, Any]] | None:  # noqa: PLR0911 - one form after the other
    """The rows of a table in one of the forms of `DataFrame.to_json`, or None.

    The forms are `split` and `table`, `columns` and `index` (mappings of mappings), and the
    mapping of lists that `DataFrame.to_dict("list")` and `Dataset.to_dict` make.
    """
    columns, cells = data.get("columns"), data.get("data")
    if isinstance(columns, list) and isinstance(cells, list):
        if all(isinstance(row, list) and len(row) == len(columns) for row in cells):
            return [dict(zip(map(str, columns), row, strict=True)) for row in cells]
        return None
    if isinstance(data.get("schema"), Mapping) and isinstance(cells, list):
        return cells
    values = list(data.values())
    if len(values) > 1 and all(isinstance(value, list) for value in values):
        if len({len(value) for value in values}) != 1 or not values[0]:
            return None
        if all(isinstance(item, Mapping) and "role" not in item for v in values for item in v):
            return None  # several lists of rows
        return [dict(zip(data, row, strict=True)) for row in zip(*values, strict=True)]
    if not values or not all(isinstance(value, Mapping) and value for value in values):
        return None
    inner = list(values[0])
    if any(list(value) != inner for value in values[1:]):
        return None
    if all(key.lstrip("-").isdigit() for key in data) or not all(k.isdigit() for k in inner):
        return (
            [dict(value) for value in values] if len(values) > 1 or data.keys() == {"0"} else None
        )
    return [{column: value[key] for column, value in data.items()} for key in inner]
