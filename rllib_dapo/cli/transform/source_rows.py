"""Reads the rows of a data set with their origin, and says why a row cannot be used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rllib_dapo.data.chats import asked_text
from rllib_dapo.data.load import find_parts
from rllib_dapo.data.schemas import Messages, RowError, Schema


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row of the input.

    Attributes:
        source: `file:row`; rows count from 1.
        problem: the text or the chat messages; empty if the row cannot be used.
        answer: the gold answer as text.
        error: the reason why the row cannot be used, or None.
    """

    source: str
    problem: str | Messages
    answer: str
    error: str | None = None

    @property
    def text(self) -> str:
        """The text of the problem; if it is a chat, that of the last message."""
        return self.problem if isinstance(self.problem, str) else asked_text(self.problem)

    def with_question(self, question: str) -> str | Messages:
        """The problem with `question` after its text."""
        if not question:
            return self.problem
        if isinstance(self.problem, str):
            return _append(self.problem, question)
        place = max(i for i, m in enumerate(self.problem) if m["role"] == "user")
        asked = {**self.problem[place], "content": _append(self.text, question)}
        return [*self.problem[:place], asked, *self.problem[place + 1 :]]


@dataclass(frozen=True, slots=True)
class Source:
    """A data set to read rows from.

    Attributes:
        location: a file, a folder or a hub id, as `data.load.load_problems` takes it.
        problem_key: the column of the problem; None recognises the common names.
        answer_key: the column of the gold answer; None recognises the common names.
        split: the split to read, as in `load_problems`.
        subset: the subset to read, as in `load_problems`.
        limit: the number of rows to read; None reads all.
    """

    location: str
    problem_key: str | None = None
    answer_key: str | None = None
    split: str | None = None
    subset: str | None = None
    limit: int | None = None

    def rows(self) -> Iterator[SourceRow]:
        """The rows in a fixed order.

        Raises:
            DataError: a file cannot be read or lacks a column; the message names file and row.
        """
        count = 0
        for part in find_parts(self.location, self.split, self.subset):
            for schema, number, row in part.rows(self.problem_key, self.answer_key):
                if self.limit is not None and count >= self.limit:
                    return
                count += 1
                yield _read(schema, row, f"{part.name}:{number}")

    def fingerprint(self) -> tuple[int, str]:
        """The number of rows, and a hash of everything that is read of them."""
        digest, count = hashlib.sha256(), 0
        for row in self.rows():
            count += 1
            line = json.dumps([row.source, row.problem, row.answer, row.error])
            digest.update(line.encode() + b"\n")
        return count, digest.hexdigest()


def _read(schema: Schema, row: Mapping[str, Any], source: str) -> SourceRow:
    try:
        problem, answer = schema.read(row)
    except RowError as error:
        return SourceRow(source, "", "", str(error))
    return SourceRow(source, problem, answer)


def _append(problem: str, question: str) -> str:
    return problem.rstrip() + " " + question
