"""Multiple choice: the choices of a row, as lettered lines, and the letter of its ground truth.

The choices are one column (a list, or texts with labels: MMLU, ARC), a column for each choice
(`A`, `B`, …; `option_a`, …; `opa`, …), or one correct and several incorrect answers (GPQA). The
last have no order of their own; theirs follows from a hash of the question, so every run has the
same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from rllib_dapo.data.row_values import RowError, decode, is_empty, lookup, plain
from rllib_dapo.errors import DataError

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LIST_NAMES = ("choices", "options", "candidates", "alternatives", "answer_choices", "endings")
_ONE_EACH = re.compile(
    r"(?:option|choice|opt|op|ans|answer|alternative|ending)?[ _\-.]?([a-j]|[0-9])", re.IGNORECASE
)
_LABEL = re.compile(r"\s*[(\[]?\s*([A-Za-z]|[0-9])\s*[)\].:]\s*")
_GOLD_LETTER = re.compile(r"\s*[(\[]?\s*([A-Za-z])\s*[)\].:]?\s*")


class ChoiceError(DataError):
    """The rows do not fit the layout that was recognised, so none of them can be trusted."""


@dataclass(frozen=True, slots=True)
class ChoiceColumns:
    """Where the choices of a row are.

    Attributes:
        columns: one column with all of them, or one for each.
        correct: the column of the correct answer's text, if the choices have no order (GPQA).
    """

    columns: tuple[str, ...]
    correct: str = ""

    def read(self, row: Mapping[str, Any], order: str) -> Choices | None:
        """The choices of a row; None if it has none.

        Args:
            row: the values by column.
            order: a text that decides the order of choices that have none.

        Raises:
            RowError: they cannot be read.
        """
        if self.correct:
            return self._mixed(row, order)
        if len(self.columns) > 1:
            given = [lookup(row, column) for column in self.columns]
            while given and is_empty(given[-1]):
                given.pop()
            labels = list(LETTERS[: len(given)])
            key = self.columns[0]
        else:
            key = self.columns[0]
            given, labels = _listed(lookup(row, key), key)
        if not given:
            return None
        if any(is_empty(item) and not isinstance(item, str) for item in given):
            raise RowError(key, f"found a choice that is missing ({given!r:.80}); fill it in")
        texts = [_text(item, key) for item in given]
        if len(texts) < 2:
            raise RowError(key, f"found 1 choice ({texts[0]!r:.60}); a question needs two or more")
        own = [found[1] for text in texts if (found := _LABEL.match(text))]
        if own in (list(LETTERS[: len(texts)]), list(LETTERS[: len(texts)].lower())):
            texts = [_LABEL.sub("", text, count=1) for text in texts]
        return Choices(tuple(labels), tuple(text.strip() for text in texts), key)

    def _mixed(self, row: Mapping[str, Any], order: str) -> Choices:
        texts = [_text(lookup(row, column), column) for column in (self.correct, *self.columns)]
        texts = [text.strip() for text in texts]
        ranked = sorted(
            range(len(texts)),
            key=lambda i: blake2b(f"{order}\0{i}".encode(errors="replace")).digest(),
        )
        letters = tuple(LETTERS[: len(texts)])
        return Choices(
            letters, tuple(texts[i] for i in ranked), self.correct, letters[ranked.index(0)]
        )


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of one row.

    Attributes:
        labels: the letter (or digit) of each.
        texts: the text of each.
        key: the column they come from, for messages.
        correct: the letter of the correct one, if the columns say so by themselves.
    """

    labels: tuple[str, ...]
    texts: tuple[str, ...]
    key: str
    correct: str = ""

    @property
    def lines(self) -> str:
        """The choices, one a line, each with its letter."""
        lines = zip(self.labels, self.texts, strict=True)
        return "\n".join(f"{label}. {text}" for label, text in lines)

    def posed_in(self, problem: str) -> bool:
        """Whether a problem lists these choices itself, with their letters."""
        return all(
            re.search(rf"(?<!\w){re.escape(label)}\W{{1,3}}\s*{re.escape(text)}", problem)
            for label, text in zip(self.labels, self.texts, strict=True)
        )

    def letter(self, gold: Any, key: str) -> str:
        """The letter of a ground truth, which is a letter, an index from 0 or a choice's text.

        Raises:
            RowError: it is missing, none of the choices, or could be two of them.
            ChoiceError: it is an index that does not count from 0.
        """
        if self.correct:
            return self.correct
        gold = plain(gold)
        if isinstance(gold, (list, tuple)) and len(gold) == 1:
            gold = plain(gold[0])
        if is_empty(gold) and not (isinstance(gold, str) and gold in self.texts):
            raise RowError(key, "found nothing for a ground truth; remove the row or fill it in")
        if isinstance(gold, float) and gold.is_integer():
            gold = int(gold)
        if isinstance(gold, int) and not isinstance(gold, bool):
            return self._at(gold, key)
        text = str(gold).strip()
        if text in self.labels:
            return text
        same = [i for i, choice in enumerate(self.texts) if _same(choice, text)]
        by_index = int(text) if re.fullmatch(r"\d{1,2}", text) else None
        if by_index is not None and (not same or by_index in same):
            return self._at(by_index, key)
        if len(same) == 1 and (by_index is None or by_index >= len(self.texts)):
            return self.labels[same[0]]
        found = _GOLD_LETTER.fullmatch(text) or (_LABEL.match(text) if not same else None)
        if found and found[1].upper() in self.labels and by_index is None:
            return found[1].upper()
        raise RowError(
            key,
            f"found {text!r:.60}, which is not one letter, index or text of the choices"
            f" {list(self.texts)!r:.120}; give the letter of the correct one",
            text[:120],
        )

    def _at(self, index: int, key: str) -> str:
        if 0 <= index < len(self.labels):
            return self.labels[index]
        if str(index) in self.texts:
            return self.labels[self.texts.index(str(index))]
        raise ChoiceError(
            f"column {key!r}: found the index {index}, but the {len(self.labels)} choices"
            " are counted from 0; if the column counts from 1, use letters instead"
        )


def find_choices(columns: Sequence[str]) -> ChoiceColumns | None:
    """The columns of choices among the columns of a file, or None."""
    by_lower = {name.lower().strip(): name for name in reversed(columns)}
    correct = next((by_lower[n] for n in ("correct answer", "correct_answer") if n in by_lower), "")
    wrong = [
        name for name in columns
        if re.fullmatch(r"(?:incorrect|wrong)[ _]?answers?[ _]?\d|distractor[ _]?\d", name.lower())
    ]  # fmt: skip
    if correct and len(wrong) > 1:
        return ChoiceColumns(tuple(sorted(wrong)), correct)
    for name in _LIST_NAMES:
        if name in by_lower:
            return ChoiceColumns((by_lower[name],))
    families: dict[str, dict[str, str]] = {}
    for name in columns:
        if found := _ONE_EACH.fullmatch(name.strip()):
            stem = name.strip()[: found.start(1)].lower()
            families.setdefault(stem, {})[found[1].upper()] = name
    for family in families.values():
        marks = sorted(family)
        if len(marks) > 1 and marks in (
            list(LETTERS[: len(marks)]),
            [str(i) for i in range(len(marks))],
            [str(i + 1) for i in range(len(marks))],
        ):
            return ChoiceColumns(tuple(family[mark] for mark in marks))
    return None


def _listed(value: Any, key: str) -> tuple[list[Any], list[str]]:
    """The choices of one column with all of them, and their labels."""
    if is_empty(value):
        return [], []
    value = plain(decode(value))
    if isinstance(value, Mapping):
        if "text" in value and "label" in value:  # ARC
            texts = list(plain(value["text"]))
            labels = [str(label).strip() for label in plain(value["label"])]
            if len(set(labels)) == len(labels) == len(texts):
                return texts, labels
        labels = [str(label).strip().upper() for label in value]
        if labels != list(LETTERS[: len(labels)]):
            raise RowError(
                key, f"found {value!r:.80} for choices; use a list, or a mapping by letter"
            )
        return [plain(item) for item in value.values()], labels
    if isinstance(value, (list, tuple)):
        items = [plain(item) for item in value]
        if items and all(isinstance(i, Mapping) and {"label", "text"} <= set(i) for i in items):
            return [i["text"] for i in items], [str(i["label"]).strip() for i in items]
        return items, list(LETTERS[: len(items)])
    if isinstance(value, str):
        parts = re.split(r"(?:^|[,;\n|]|\s)\s*[(\[]?([A-Ja-j])\s*[)\].:]\s+", value.strip())
        if len(parts) > 4 and [p.upper() for p in parts[1::2]] == list(LETTERS[: len(parts) // 2]):
            return [p.strip(" ,;\n") for p in parts[2::2]], list(LETTERS[: len(parts) // 2])
    raise RowError(
        key, f"found {value!r:.80} for choices; use a list of texts, or a text with lettered lines"
    )


def _text(value: Any, key: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise RowError(key, f"found {value!r:.60} for a choice; it must be a text or a number")
    return str(value)


def _same(choice: str, gold: str) -> bool:
    return " ".join(choice.split()).casefold() == " ".join(gold.split()).casefold()
