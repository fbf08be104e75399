"""Read a chat: its messages, what it asks, and the beginning of a completion it may end in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rllib_dapo.data.row_values import RowError, decode, encodable, plain
from rllib_dapo.rewards.grading.extract import extract_robust

Messages = list[dict[str, str]]
"""A chat: dicts with `role` and `content`, in order."""

_ROLES = ("system", "user", "assistant")
_CHAT_TEXT = re.compile(r"\s*(?:array\()?\[?\s*\{\s*['\"](?:role|content)['\"]\s*:")


def as_chat(value: Any) -> list[Mapping[str, Any]] | None:
    """The messages of a value that is a chat, or None.

    A chat is a list of mappings with `role` and `content`, one such mapping, a mapping of two
    lists (as the `datasets` library stores a sequence of mappings), or any of these as a text.
    """
    value = plain(decode(value))
    if isinstance(value, Mapping) and "role" in value and "content" in value:
        roles, contents = plain(value["role"]), plain(value["content"])
        if isinstance(roles, list) and isinstance(contents, list):
            pairs = zip(roles, contents, strict=False)
            value = [{"role": role, "content": content} for role, content in pairs]
        else:
            value = [value]
    if not isinstance(value, (list, tuple)) or not value:
        return None
    if all(isinstance(m, Mapping) and "role" in m and "content" in m for m in value):
        return list(value)
    return None


def is_broken_chat(text: str) -> bool:
    """Whether a text that `as_chat` cannot read begins as a chat does."""
    return _CHAT_TEXT.match(text) is not None


def read_question(chat: Sequence[Mapping[str, Any]], key: str, answer: str | None) -> Messages:
    """The messages to pose: up to the question, or up to the beginning of a completion.

    Training data for fine-tuning end in the assistant's whole completion, which is left off. An
    unfinished turn of the assistant, such as `<think>`, is kept: the model continues it.

    Args:
        chat: the messages as the row has them.
        key: their column, for messages.
        answer: the ground truth; None if the last turn is where it comes from.

    Raises:
        RowError: a message is malformed, or there is no question.
    """
    messages = [_read_message(message, key) for message in chat]
    asked = list(messages)
    while len(asked) > 1 and asked[-1]["role"] == "assistant":
        asked.pop()
    if asked[-1]["role"] != "user" or not asked[-1]["content"].strip():
        raise RowError(
            key, "found a chat that does not end in a user message with a problem; end it in one"
        )
    begun = messages[len(asked) :]
    if answer is None or not begun or not _is_unfinished(begun[-1]["content"], answer):
        return asked
    if len(begun) > 1:
        raise RowError(
            key,
            f"found {len(begun)} messages of the assistant at the end, of which the last is"
            f" unfinished ({begun[-1]['content'][-40:]!r}); join them into one",
        )
    return messages


def asked_text(messages: Sequence[Mapping[str, str]]) -> str:
    """The text of the last message of the user."""
    return next(m["content"] for m in reversed(messages) if m["role"] == "user")


def _is_unfinished(completion: str, answer: str) -> bool:
    """Whether an assistant's turn is only the beginning of a completion."""
    if not completion.strip():
        return False
    if completion.rfind("<think>") > completion.rfind("</think>"):
        return True
    if extract_robust(completion) is not None:
        return False
    finished = completion.rstrip().endswith((".", "!", "$", "。"))
    stated = re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", completion) is not None
    return not (finished and stated)


def _read_message(message: Mapping[str, Any], key: str) -> dict[str, str]:
    role, content = str(message["role"]), plain(message["content"])
    if isinstance(content, list):  # a list of content parts, as in multimodal chats
        parts = [part for part in content if isinstance(part, Mapping)]
        other = [
            str(p["type"]) for p in parts if p.get("type", "text") not in ("text", "input_text")
        ]
        if other:
            raise RowError(
                key,
                f"found a part of the type {other[0]!r} in a chat message; only texts can be posed",
            )
        content = "".join(str(part.get("text", "")) for part in parts)
    if role not in _ROLES:
        raise RowError(key, f"found a chat message of the role {role!r}; use {', '.join(_ROLES)}")
    if not isinstance(content, str):
        raise RowError(key, f"found a chat message whose content is {content!r:.60}, no text")
    return {"role": role, "content": encodable(content, key)}
