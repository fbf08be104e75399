"""Look up and decode the values of a row, whatever library wrote them.

The same value arrives in many forms: numpy arrays and scalars from pandas, JSON in a text from a
data base, and the printed form of Python or numpy objects (`[{'role': 'user', …}]`) from a CSV
file that pandas wrote. Nothing is evaluated: printed forms are read by `ast.literal_eval`.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Mapping
from typing import Any

from rllib_dapo.errors import DataError

_LONGEST_TEXT = 4_000_000  # characters of a printed value that is decoded
_DEEPEST = 40  # brackets within brackets of a printed value that is decoded

# A string literal; or the gap between two elements of a printed array, which has no commas; or
# the words that pandas and numpy print around an array.
_PRINTED = re.compile(
    r"""(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?P<gap>\s+(?=['"\[{]))?"""
    r"""|(?P<close>[}\]])(?P<after>\s+(?=['"\[{]))"""
    r"""|(?P<array>\barray\()|(?P<kind>,\s*dtype=\w+\s*\))""",
    re.DOTALL,
)


class RowError(DataError):
    """A row cannot be used. The caller, which knows the file and the row, adds them.

    Args:
        column: the column of the value that cannot be used; "" if the row itself is malformed.
        problem: what was found there, and what to do.
        value: the value, cut to a readable length.
    """

    def __init__(self, column: str, problem: str, value: str = "") -> None:
        super().__init__(f"column {column!r}: {problem}" if column else problem)
        self.column = column
        self.problem = problem
        self.value = value

    def __reduce__(self) -> tuple[type[RowError], tuple[str, str, str]]:
        """Pickle the arguments, because Ray sends errors from process to process."""
        return type(self), (self.column, self.problem, self.value)


def plain(value: Any) -> Any:
    """Turn numpy arrays and scalars into Python values; leave other values unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def is_missing(value: Any) -> bool:
    """Whether this is None or not a number, as the libraries write a missing value."""
    return value is None or (isinstance(value, float) and value != value)  # noqa: PLR0124 - NaN


def is_empty(value: Any) -> bool:
    """Whether a value says nothing: missing, a blank text, or an empty list or mapping."""
    value = plain(value)
    if isinstance(value, str):
        return value.strip().lower() in ("", "nan", "none", "null", "[]", "{}")
    return is_missing(value) or (isinstance(value, (list, tuple, Mapping, bytes)) and not value)


def decode(value: Any) -> Any:
    """Decode a text that holds an object or a list, as JSON or as Python or numpy prints them.

    Other values, and texts that hold something else, are returned unchanged: LaTeX sets and
    intervals begin with the same characters.
    """
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[", "array(")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    if len(value) > _LONGEST_TEXT or not re.match(r"\s*(?:array\()?[\[{\s]*['\"]", value):
        return value
    text = _PRINTED.sub(_with_commas, value).strip()
    if _depth(text) > _DEEPEST:
        return value
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return value


def _with_commas(found: re.Match[str]) -> str:
    if found["text"] is not None:
        return found["text"] + ("," if found["gap"] else "")
    if found["close"] is not None:
        return found["close"] + ","
    return ""  # around an array


def _depth(text: str) -> int:
    """How deep the brackets of a text are nested; those in strings count too."""
    deepest = depth = 0
    for bracket in re.findall(r"[\[\](){}]", text):
        depth += 1 if bracket in "[({" else -1
        deepest = max(deepest, depth)
    return deepest


def lookup(row: Mapping[str, Any], key: str) -> Any:
    """The value of a column; dots lead into mappings.

    Raises:
        RowError: there is no such value in this row.
    """
    if key in row:
        return plain(row[key])
    value: Any = row
    parts = key.split(".")
    for i, part in enumerate(parts):
        value = plain(decode(plain(value)))
        inside = ".".join(parts[:i])
        if not isinstance(value, Mapping):
            raise RowError(key, f"missing: {inside or 'the row'} is {value!r:.60}, no mapping")
        if part not in value:
            near = difflib.get_close_matches(part, map(str, value), n=1)
            hint = f", the nearest is {near[0]!r}" if near else ""
            raise RowError(
                key,
                f"missing; {inside or 'the row'} has {', '.join(map(repr, value)) or 'nothing'}"
                f"{hint}; repair the row or name another column",
            )
        value = value[part]
    return plain(value)


def encodable(text: str, key: str) -> str:
    """The text itself, if it can be written as UTF-8.

    Raises:
        RowError: it holds half a surrogate pair.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowError(
            key, f"found half a surrogate pair at character {error.start + 1}; repair the text"
        ) from error
    return text
