"""Find the problem and the ground truth in a row, and read both.

A row is a mapping from columns to values as the file format gives them: texts, numbers,
numpy scalars and arrays, nested mappings, or texts that hold JSON.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rllib_dapo.errors import DataError
from rllib_dapo.rewards.grading.extract import last_box
from rllib_dapo.rewards.grading.grade import parse_gold

Messages = list[dict[str, str]]
"""A chat: dicts with `role` and `content`, in order."""

_PROBLEM_NAMES = ("problem", "question", "prompt", "messages", "input")
_ANSWER_NAMES = (
    "answer",
    "reward_model.ground_truth",
    "ground_truth",
    "expected_answer",
    "final_answer",
    "solution",
    "target",
    "output",
    "messages",
    "extra_info.answer",
)
_SOLUTIONS = ("solution", "messages")  # columns of worked solutions, with the answer in a box
_ANSWER_KEYS = ("ground_truth", "answer", "target", "value")  # inside an answer that is a dict
_ROLES = ("system", "user", "assistant")


class RowError(DataError):
    """A row cannot be used. The caller, which knows the file and the row, adds them.

    Args:
        column: the column of the value that cannot be used.
        problem: what was found there, and what to do.
    """

    def __init__(self, column: str, problem: str) -> None:
        super().__init__(f"column {column!r}: {problem}")
        self.column = column
        self.problem = problem

    def __reduce__(self) -> tuple[type[RowError], tuple[str, str]]:
        """Pickle the arguments, because Ray sends errors from process to process."""
        return type(self), (self.column, self.problem)


@dataclass(frozen=True, slots=True)
class Schema:
    """The two columns that are read.

    Attributes:
        problem: column of the problem; dots lead into nested mappings.
        answer: column of the ground truth, likewise.
    """

    problem: str
    answer: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The top-level columns to read from a file."""
        return tuple(dict.fromkeys(key.split(".")[0] for key in (self.problem, self.answer)))

    def read(self, row: Mapping[str, Any]) -> tuple[str | Messages, str]:
        """The problem and the ground truth of a row.

        Raises:
            RowError: one of them is missing, empty or of no use.
        """
        problem = _read_problem(lookup(row, self.problem), self.problem)
        return problem, _read_answer(lookup(row, self.answer), self.answer)


def detect_schema(
    columns: Iterable[str], problem_key: str | None = None, answer_key: str | None = None
) -> Schema:
    r"""Choose the columns that the caller named, or else the first known names present.

    The known names are `problem`, `question`, `prompt`, `messages` (open-r1) and `input` for
    the problem; and for the ground truth `answer`, `reward_model.ground_truth` (verl,
    DAPO-Math-17k), `ground_truth`, `expected_answer`, `final_answer`, `solution` (MATH: the
    last `\boxed{}`), `target`, `output`, `messages` (the last message of the assistant) and
    `extra_info.answer` (verl). Upper and lower case are the same. `input` is not taken if
    there is an `instruction` column, because it then holds only half of the problem.

    Raises:
        DataError: a column is missing; the message lists the columns present and the nearest.
    """
    present = list(columns)
    known: tuple[str, ...] = _PROBLEM_NAMES
    if any(name.lower() == "instruction" for name in present):
        known = tuple(name for name in known if name != "input")
    return Schema(
        _choose("problem_key", problem_key, known, present),
        _choose("answer_key", answer_key, _ANSWER_NAMES, present),
    )


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


def lookup(row: Mapping[str, Any], key: str) -> Any:
    """The value of a column; dots lead into mappings, also into those that are JSON in a text.

    Raises:
        RowError: there is no such value.
    """
    if key in row:
        return _plain(row[key])
    value: Any = row
    for i, part in enumerate(key.split(".")):
        value = _plain(_from_json(_plain(value)))
        if not isinstance(value, Mapping) or part not in value:
            inside = ".".join(key.split(".")[:i])
            if not isinstance(value, Mapping):
                raise RowError(key, f"missing: {inside or 'the row'} is {value!r:.60}, no mapping")
            near = difflib.get_close_matches(part, value, n=1)
            hint = f", the nearest is {near[0]!r}" if near else ""
            raise RowError(
                key,
                f"missing; {inside or 'the row'} has {', '.join(map(repr, value)) or 'nothing'}"
                f"{hint}; repair the row or name another column",
            )
        value = value[part]
    return _plain(value)


def _plain(value: Any) -> Any:
    """Turn numpy arrays and scalars into Python values; leave other values unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def _from_json(value: Any) -> Any:
    """Decode a text that holds a JSON object or list; leave other values unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value  # LaTeX sets and intervals begin with these characters too
    return value


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)  # noqa: PLR0124 - NaN


def _read_problem(value: Any, key: str) -> str | Messages:
    decoded = _as_chat(_from_json(value))
    if _looks_like_chat(decoded):
        return _read_messages(_asked(decoded), key)
    if not isinstance(value, str):
        found = "nothing" if _is_missing(value) else f"{value!r:.60} ({type(value).__name__})"
        raise RowError(
            key, f"found {found} for a problem; it must be a text or a list of chat messages"
        )
    if not value.strip():
        raise RowError(key, "found an empty problem; remove the row or fill it in")
    return _encodable(value, key)


def _as_chat(value: Any) -> Any:
    """Turn one message, or a mapping of lists, into a list; leave other values unchanged."""
    if not isinstance(value, Mapping) or "role" not in value or "content" not in value:
        return value
    roles, contents = _plain(value["role"]), _plain(value["content"])
    if not isinstance(roles, list):
        return [value]
    # The `datasets` library stores a sequence of mappings as a mapping of lists.
    pairs = zip(roles, contents, strict=False)
    return [{"role": role, "content": content} for role, content in pairs]


def _asked(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """A chat without the assistant's messages at its end, which fine-tuning data have."""
    end = len(messages)
    while end > 1 and messages[end - 1]["role"] == "assistant":
        end -= 1
    return messages[:end]


def _looks_like_chat(value: Any) -> bool:
    if not isinstance(value, (list, tuple)) or not value:
        return False
    return all(isinstance(m, Mapping) and "role" in m and "content" in m for m in value)


def _read_messages(value: Sequence[Mapping[str, Any]], key: str) -> Messages:
    messages = []
    for message in value:
        role, content = str(message["role"]), _plain(message["content"])
        if isinstance(content, list):  # a list of content parts, as in multimodal chats
            content = "".join(str(p.get("text", "")) for p in content if isinstance(p, Mapping))
        if role not in _ROLES:
            raise RowError(
                key, f"found a chat message of the role {role!r}; use {', '.join(_ROLES)}"
            )
        if not isinstance(content, str):
            raise RowError(key, f"found a chat message whose content is {content!r:.60}, no text")
        messages.append({"role": role, "content": _encodable(content, key)})
    if messages[-1]["role"] != "user" or not messages[-1]["content"].strip():
        raise RowError(
            key, "found a chat that does not end in a user message with a problem; end it in one"
        )
    return messages


def _encodable(text: str, key: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowError(
            key, f"found half a surrogate pair at character {error.start + 1}; repair the text"
        ) from error
    return text


def _read_answer(value: Any, key: str) -> str:
    if isinstance(value, str) and value.lstrip().startswith(('{"', '["', '[{"')):
        value = _from_json(value)
    chat = _as_chat(value)
    if _looks_like_chat(chat):
        if chat[-1]["role"] != "assistant":
            raise RowError(key, "found a chat without an answer; name another answer_key")
        value = chat[-1]["content"]
    if isinstance(value, Mapping):
        inner = next((k for k in _ANSWER_KEYS if k in value), None)
        if inner is None:
            raise RowError(
                key,
                f"found a mapping with {', '.join(map(repr, value)) or 'nothing'} for a ground"
                f" truth; it needs one of {', '.join(_ANSWER_KEYS)}",
            )
        return _read_answer(_plain(value[inner]), f"{key}.{inner}")
    if isinstance(value, (list, tuple)):
        if len(value) != 1:
            raise RowError(
                key, f"found {len(value)} ground truths ({value!r:.60}); give exactly one"
            )
        return _read_answer(_plain(value[0]), key)
    if _is_missing(value):
        raise RowError(key, "found nothing for a ground truth; remove the row or fill it in")
    if isinstance(value, Decimal):
        value = format(value, "f")
    if isinstance(value, str):
        value = _final_answer(value, key)
    try:
        return parse_gold(value).text
    except DataError as error:
        raise RowError(key, f"{error}; give a ground truth that can be compared") from error


def _final_answer(text: str, key: str) -> str:
    """The answer at the end of a worked solution; a bare answer is returned as it is."""
    solution, mark, answer = text.rpartition("####")
    if mark and (not solution or solution[-1].isspace()):
        return answer.strip()
    if "\\boxed" in text or "\\fbox" in text:
        return last_box(text) or ""
    if key.rpartition(".")[2].lower() in _SOLUTIONS and len(text.split()) > 3:
        raise RowError(
            key, f"found no \\boxed answer in the solution {text[:40]!r}…; name another answer_key"
        )
    return text.strip()
