r"""A problem out of several columns: `"{Body} {Question}"`.

`{name}` stands for a column, `{name?}` for one that may be empty, and dots lead into mappings.
Braces of LaTeX stay as they are: `\frac{1}{2}`, `x^{n}` and `\boxed{answer}` name no column.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rllib_dapo.data.row_values import RowError, decode, encodable, is_empty, lookup, plain
from rllib_dapo.errors import DataError

SETTING = "problem_template"
_BRACES = re.compile(r"\{([^{}\n]*)\}")
_NAME = re.compile(r"[^\W\d][\w.\- ]*\??")
# Braces behind a command, a sub- or superscript or another pair of braces belong to LaTeX.
_LATEX = re.compile(r"(?:\\[A-Za-z]+\*?(?:\[[^\]]*\])?|[_^}])\Z|\\\Z")


@dataclass(frozen=True, slots=True)
class Slot:
    """A column within a template.

    Attributes:
        key: the column; dots lead into mappings.
        optional: whether it may be empty.
    """

    key: str
    optional: bool


@dataclass(frozen=True, slots=True)
class ProblemTemplate:
    """A template whose columns were found.

    Attributes:
        text: the template as it was written.
        parts: texts and slots in their order.
    """

    text: str
    parts: tuple[str | Slot, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that it takes."""
        return tuple(part.key for part in self.parts if isinstance(part, Slot))

    def fill(
        self, row: Mapping[str, Any], special: Mapping[str, Callable[[], str]] | None = None
    ) -> str:
        """The problem of a row.

        Args:
            row: the values by column.
            special: makes the texts of columns that are no texts, such as choices.

        Raises:
            RowError: a column is empty, or holds something else than a text.
        """
        special = special or {}
        filled = []
        for part in self.parts:
            if isinstance(part, str):
                filled.append(part)
            elif part.key in special:
                filled.append(special[part.key]())
            else:
                filled.append(_read_text(row, part))
        text = "".join(filled).strip()
        if not text:
            raise RowError(self.keys[0], "found an empty problem; remove the row or fill it in")
        return text


def read_template(text: str, columns: Iterable[str]) -> ProblemTemplate:
    """Find the columns of a template.

    Raises:
        DataError: it names a column that is not there, or none at all.
    """
    present = list(columns)
    parts: list[str | Slot] = []
    end = 0
    for found in _BRACES.finditer(text):
        inner = found[1]
        if _LATEX.search(text[max(0, found.start() - 40) : found.start()]):
            continue
        key, optional = inner.removesuffix("?"), inner.endswith("?")
        known = key in present or (key.split(".")[0] in present and "." in key)
        if text[max(0, found.start() - 1) : found.end() + 1] == "{" + found[0] + "}":
            raise DataError(f"{SETTING}={text!r:.120}: write {{{key.strip()}}} in single braces")
        if not known:
            if not _NAME.fullmatch(inner):
                continue  # {1, 2} is a set
            raise DataError(_unknown(text, key, present))
        parts += [text[end : found.start()], Slot(key, optional)]
        end = found.end()
    if not parts:
        raise DataError(
            f"{SETTING}={text!r:.120}: it names no column in braces; columns present:"
            f" {', '.join(map(repr, present)) or 'none'}"
        )
    return ProblemTemplate(text, tuple(part for part in (*parts, text[end:]) if part != ""))


def _unknown(text: str, key: str, present: list[str]) -> str:
    near = difflib.get_close_matches(key, present, n=1, cutoff=0.5) or [
        name for name in present if name.lower() == key.lower()
    ]
    hint = f"; the nearest is {near[0]!r}" if near else ""
    return (
        f"{SETTING}={text!r:.120}: there is no column {key!r}; columns present:"
        f" {', '.join(map(repr, present)) or 'none'}{hint}"
    )


def _read_text(row: Mapping[str, Any], slot: Slot) -> str:
    if slot.optional and slot.key not in row and "." not in slot.key:
        return ""
    value = lookup(row, slot.key)
    if is_empty(value):
        if slot.optional:
            return ""
        raise RowError(
            slot.key,
            f"found nothing ({value!r:.20}) for a part of the problem; fill it in, remove the row,"
            f" or write {{{slot.key}?}} in {SETTING} if it may be empty",
        )
    listed = plain(decode(value))
    if isinstance(listed, (list, tuple)) and all(isinstance(item, str) for item in listed):
        return "\n".join(listed)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise RowError(
            slot.key,
            f"found {value!r:.60} ({type(value).__name__}) for a part of the problem; name a"
            " column of texts",
            f"{value!r:.120}",
        )
    return encodable(str(value), slot.key)
