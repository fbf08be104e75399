"""Decide which columns of a file are read, and read the problem and the ground truth of a row.

A row is a mapping from columns to values as the file format gives them: texts, numbers,
numpy scalars and arrays, nested mappings, or texts that hold JSON.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rllib_dapo.data.chats import Messages, as_chat, is_broken_chat, read_question
from rllib_dapo.data.choices import ChoiceColumns, Choices, find_choices
from rllib_dapo.data.golds import read_gold
from rllib_dapo.data.load_report import ColumnsTaken
from rllib_dapo.data.problem_template import ProblemTemplate, read_template
from rllib_dapo.data.row_values import RowError, encodable, is_empty, is_missing, lookup, plain
from rllib_dapo.errors import DataError

__all__ = ["Messages", "RowError", "Schema", "detect_schema"]

_PROBLEM_NAMES = ("problem", "question", "prompt", "messages", "input")
_WITH_CHOICES = ("query", "question_stem")  # columns of the question beside choices
_ANSWER_NAMES = (
    "answer", "reward_model.ground_truth", "ground_truth", "expected_answer", "final_answer",
    "solution", "target", "output", "messages", "extra_info.answer",
)  # fmt: skip
_LETTER_NAMES = ("answerkey", "answer_key", "correct", "correct_option", "label", "cop",
                 "answer_index", "answer_idx", "correct answer", "correct_answer")  # fmt: skip
# Words in the names of columns that hold a part of a problem.
_PARTS = frozenset(
    "body context contexts passage passages paragraph paragraphs story article document"  # noqa: SIM905
    " documents background premise premises scenario facts preamble setup setting statement"
    " description text stem evidence instruction instructions input choices options candidates"
    " alternatives endings image images figure diagram picture table introduction intro"
    " question problem query narrative situation excerpt given hypothesis support".split()
)
_ABOUT = frozenset(
    "id ids url link length len tokens token count num number type name hash index idx source"  # noqa: SIM905
    " lang language path file size split level subject concat original".split()
)


_IMAGE = re.compile(r"(?i)image|figure|diagram|picture")


class LayoutError(DataError):
    """A file would be posed by half, so none of its rows can be used as they are."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns that are read.

    Attributes:
        problem: column of the problem; dots lead into nested mappings.
        answer: column of the ground truth, likewise.
        template: makes the problem out of several columns; None takes `problem` as it is.
        choices: where the choices are, if the problem is multiple choice.
        others: columns that may hold a part of the problem, although they are not posed.
        named: whether the user named the column of the answer.
        rule: the layout that was recognised; "" for plain columns.
    """

    problem: str
    answer: str
    template: ProblemTemplate | None = None
    choices: ChoiceColumns | None = None
    others: tuple[str, ...] = ()
    named: bool = False
    rule: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The top-level columns to read from a file."""
        keys = [self.answer, *self.others]
        keys += self.template.keys if self.template else [self.problem]
        if self.choices:
            keys += [self.choices.correct] if self.choices.correct else []
            keys += self.choices.columns
        return tuple(dict.fromkeys(key.split(".")[0] for key in keys))

    def taken(self, present: Iterable[str]) -> ColumnsTaken:
        """What a report says about the columns."""
        problem = self.template.text if self.template else self.problem
        unused = tuple(name for name in present if name not in self.columns)
        return ColumnsTaken(problem, self.answer, self.rule, unused)

    def read(self, row: Mapping[str, Any]) -> tuple[str | Messages, str]:
        """The problem and the ground truth of a row.

        Raises:
            RowError: one of them is missing, empty or of no use.
            LayoutError: the row has a part of the problem that would not be posed.
        """
        choices = self.choices.read(row, str(row.get(self.problem))) if self.choices else None
        problem = self._problem(row, choices)
        value = lookup(row, self.answer)
        if choices is not None:
            return problem, choices.letter(value, self.answer)
        answer = read_gold(value, self.answer, named=self.named)
        if isinstance(problem, list):
            ends = None if self.answer.split(".")[0] == self.problem.split(".")[0] else answer
            problem = read_question(problem, self.problem, ends)
        return problem, answer

    def _problem(self, row: Mapping[str, Any], choices: Choices | None) -> Any:
        if self.template is not None:
            lines = (
                {}
                if choices is None
                else dict.fromkeys(
                    self.choices.columns[:1] if self.choices else (), lambda: choices.lines
                )
            )
            for key in self.others:
                _refuse_image(key, row.get(key))
            return self.template.fill(row, lines)
        value = lookup(row, self.problem)
        if (chat := as_chat(value)) is not None:
            return chat
        text = _read_text(value, self.problem)
        if choices is not None and not choices.posed_in(text):
            text = f"{text.rstrip()}\n{choices.lines}"
        for key in self.others:
            self._refuse_half(text, key, row.get(key))
        return text

    def _refuse_half(self, text: str, key: str, value: Any) -> None:
        _refuse_image(key, value)
        value = plain(value)
        if is_empty(value) or isinstance(value, (int, float)):
            return
        if isinstance(value, str):
            part, whole = " ".join(value.split()), " ".join(text.split())
            if part in whole or whole in part or len(part.split()) < 2 or as_chat(value):
                return
        elif as_chat(value) is not None:
            return
        raise LayoutError(
            f"column {key!r}: found {value!r:.60} beside the problem in {self.problem!r}, which"
            " would be posed without it; set problem_template to say what is posed, such as"
            f' "{{{key}?}}\\n\\n{{{self.problem}}}", or "{{{self.problem}}}" if that is the whole'
            " problem"
        )


def _refuse_image(key: str, value: Any) -> None:
    """Refuse a row with an image; other rows of the same file may have none."""
    value = plain(value)
    first = value[0] if isinstance(value, list) and value else value
    encoded = isinstance(first, Mapping) and {"bytes", "path"} & set(first)
    if isinstance(first, bytes) or encoded or (_IMAGE.search(key) and not is_empty(value)):
        raise RowError(
            key,
            "found an image, which a language model does not see; set on_bad_row: skip to leave"
            " such rows out, or problem_template to pose the text alone",
        )


def detect_schema(
    columns: Iterable[str],
    problem_key: str | None = None,
    answer_key: str | None = None,
    problem_template: str | None = None,
) -> Schema:
    r"""Choose the columns that the caller named, or else the first known names present.

    The known names are `problem`, `question`, `prompt`, `messages` (open-r1) and `input` for
    the problem; and for the ground truth `answer`, `reward_model.ground_truth` (verl,
    DAPO-Math-17k), `ground_truth`, `expected_answer`, `final_answer`, `solution` (MATH: the
    last `\boxed{}`), `target`, `output`, `messages` (the last message of the assistant) and
    `extra_info.answer` (verl). Upper and lower case are the same. `input` is not taken if
    there is an `instruction` column, because it then holds only half of the problem. Known
    layouts of several columns are joined: SVAMP and ASDiv, OlympiadBench, multiple choice.

    Raises:
        DataError: a column is missing; the message lists the columns present and the nearest.
    """
    present = list(columns)
    found = find_choices(present)
    known: tuple[str, ...] = _PROBLEM_NAMES
    if any(name.lower() == "instruction" for name in present):
        known = tuple(name for name in known if name != "input")
    answers: tuple[str, ...] = _ANSWER_NAMES
    if found is not None:
        known = (*known, *_WITH_CHOICES)
        answers = (*answers, *_LETTER_NAMES)
    if found is not None and found.correct:
        answers = (found.correct.lower(), *answers)
    template = None if problem_template is None else read_template(problem_template, present)
    if template is not None and problem_key is not None:
        raise DataError(
            f"problem_key={problem_key!r} and problem_template={problem_template!r:.80} both say"
            " what is posed; keep one of them"
        )
    answer = _choose("answer_key", answer_key, answers, present)
    if template is not None:
        if answer in template.keys and answer.split(".")[-1].lower() != "messages":
            raise DataError(
                f"problem_template={problem_template!r:.120}: {{{answer}}} is the column of the"
                " ground truth, which would be posed too; leave it out or set answer_key"
            )
        if found is not None and not set(found.columns) & set(template.keys):
            found = None
        return Schema(
            template.keys[0], answer, template, found, (), answer_key is not None, "template"
        )
    problem = _choose("problem_key", problem_key, known, present)
    template, rule = _joined(problem, present)
    used = {problem, answer, answer.split(".")[0], *(template.keys if template else ())}
    used |= {*found.columns, found.correct} if found else set()
    others = tuple(name for name in present if name not in used and _may_be_part(name))
    rule = rule or ("multiple choice" if found else "")
    return Schema(problem, answer, template, found, others, answer_key is not None, rule)


def _joined(problem: str, present: list[str]) -> tuple[ProblemTemplate | None, str]:
    """The template of a known layout whose problem is in two columns."""
    by_lower = {name.lower(): name for name in reversed(present)}
    if problem.lower() == "question" and "body" in by_lower:
        text = f"{{{by_lower['body']}?}} {{{problem}}}"
        return read_template(text, present), "body and question"
    if problem.lower() == "question" and {"context", "answer_type", "final_answer"} <= set(
        by_lower
    ):
        text = f"{{{by_lower['context']}?}}\n\n{{{problem}}}"
        return read_template(text, present), "context and question"
    return None, ""


def _may_be_part(name: str) -> bool:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    lower = [word.lower() for word in words]
    if not lower or lower[-1] in _ABOUT or lower[0] in ("source", "original", "generated"):
        return False
    exact = {"question", "problem", "query", "text", "statement", "description", "input"}
    return any(word in _PARTS - exact for word in lower) or name.lower().strip() in exact


def _choose(setting: str, named: str | None, known: tuple[str, ...], present: list[str]) -> str:
    if named is not None:
        if named in present or named.split(".")[0] in present:
            return named
        what = f"no column {named!r} (from {setting})"
    else:
        by_lower = {name.lower(): name for name in reversed(present)}
        for candidate in known:
            head, dot, tail = candidate.partition(".")
            if head in by_lower:
                return by_lower[head] + dot + tail
        what = f"no column named {', '.join(known)}"
    listed = ", ".join(map(repr, present)) or "none"
    wanted = (named,) if named is not None else known
    near = next(
        (hit[0] for name in wanted if (hit := difflib.get_close_matches(name, present, n=1))), None
    )
    hint = f"; the nearest is {near!r}" if near else ""
    raise DataError(f"{what}; columns present: {listed}{hint}; set {setting} to the right one")


def _read_text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        found = "nothing" if is_missing(value) else f"{value!r:.60} ({type(value).__name__})"
        raise RowError(
            key, f"found {found} for a problem; it must be a text or a list of chat messages"
        )
    if not value.strip():
        raise RowError(key, "found an empty problem; remove the row or fill it in")
    if is_broken_chat(value):
        raise RowError(
            key,
            f"found a text that begins as a chat and cannot be read as one ({value[:60]!r}); write"
            " it as JSON",
            value[:120],
        )
    return encodable(value, key)
