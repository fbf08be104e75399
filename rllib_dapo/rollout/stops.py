"""What ends a completion, and the text that rewards see of a completion that has ended.

A completion ends with a token id or with a string. Both stay in its ids, with their
log-probabilities, because the policy sampled them and the learner trains on them. The text ends
before the stop, unless `include_stop_str_in_output` keeps a stop string in it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from rllib_dapo.data.chat_template import after_a_turn
from rllib_dapo.data.prompts import PromptRenderer
from rllib_dapo.errors import refuse
from rllib_dapo.model.facts import load_config, load_tokenizer, model_facts
from rllib_dapo.settings.general import DAPOSettings
from rllib_dapo.types import IntArray

logger = logging.getLogger(__name__)


class Decoder(Protocol):
    """The part of a transformers tokenizer that makes texts."""

    def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> Any:
        """Text of token ids."""


@dataclass(frozen=True, slots=True)
class Stops:
    """What ends completions.

    Attributes:
        token_ids: each of these ids ends a completion and is its last token.
        strings: each of these strings ends a completion. The token that completes the string is
            the last one; it may hold characters beyond the string.
        include: whether the text keeps the stop string.
        skip_special_tokens: whether the text is without special tokens. Strings are searched for
            in the text as rewards see it.
        padding: the id that fills short rows, which never counts as text; None if it is unknown.
    """

    token_ids: tuple[int, ...]
    strings: tuple[str, ...] = ()
    include: bool = False
    skip_special_tokens: bool = True
    padding: int | None = None

    @classmethod
    def from_settings(cls, settings: DAPOSettings, renderer: PromptRenderer) -> Stops:
        """The stops of a run: those of the model, of its chat template and of the settings.

        A stop string that is one special token of the tokenizer becomes that token's id.

        Raises:
            SettingError: a stop can never occur.
        """
        trust = settings.trust_remote_code
        facts = model_facts(settings.language_model, trust_remote_code=trust)
        tokenizer = load_tokenizer(facts.path, trust_remote_code=trust)
        config = load_config(facts.path, trust_remote_code=trust)
        size = max(len(tokenizer), getattr(config, "vocab_size", None) or 0)
        for token_id in settings.stop_token_ids:
            if token_id >= size:
                refuse(
                    "stop_token_ids",
                    list(settings.stop_token_ids),
                    f"{token_id} is no token of model={settings.language_model!r}; use ids from 0 "
                    f"to {size - 1}",
                )
        ids = {*facts.stop_token_ids, *settings.stop_token_ids}
        strings: list[str] = []
        given = [settings.stop] if isinstance(settings.stop, str) else settings.stop
        for string in given:
            special = _special_id(tokenizer, string)
            if special is None:
                _check_string(tokenizer, string, skip_special=settings.skip_special_tokens)
                strings.append(string)
            else:
                ids.add(special)
        if renderer.uses_chat:
            ids |= _end_of_turn(tokenizer, renderer, ids, strings)
        return cls(
            tuple(sorted(ids)),
            tuple(strings),
            settings.include_stop_str_in_output,
            settings.skip_special_tokens,
            facts.pad_token_id,
        )

    def text(self, tokenizer: Decoder, token_ids: IntArray) -> str:
        """The text of a completion, as environments and reward functions see it.

        Args:
            tokenizer: decodes the ids.
            token_ids: int64[T], the ids as sampled.
        """
        if not self.skip_special_tokens:
            # The end of the completion is no part of its text, nor is padding.
            if len(token_ids) and token_ids[-1] in self.token_ids:
                token_ids = token_ids[:-1]
            token_ids = token_ids[token_ids != self.padding]
        text: str = tokenizer.decode(token_ids, skip_special_tokens=self.skip_special_tokens)
        return cut_at(text, self.strings, include=self.include)


def cut_at(text: str, strings: Sequence[str], *, include: bool) -> str:
    """The text up to the stop string that is complete first, or all of it if there is none.

    Of several strings that end at the same place the longest counts.

    Args:
        text: the text.
        strings: the stop strings; none is empty.
        include: keep the stop string at the end of the text.
    """
    found = [(at + len(s), at) for s in strings if (at := text.find(s)) >= 0]
    if not found:
        return text
    end, start = min(found)
    return text[: end if include else start]


def _special_id(tokenizer: Any, string: str) -> int | None:
    """The id of a special token that is written like this, or None."""
    token_id = tokenizer.get_added_vocab().get(string)
    known = token_id is not None and token_id in tokenizer.all_special_ids
    return int(token_id) if known else None


def _check_string(tokenizer: Any, string: str, *, skip_special: bool) -> None:
    """Refuse a stop string that no completion can contain."""
    if skip_special:
        inside = [token for token in tokenizer.all_special_tokens if token in string]
        if inside:
            refuse(
                "stop",
                string,
                f"the special token {inside[0]} is taken out of the text before the text is "
                "searched; give the token alone, or set skip_special_tokens=false",
            )
    ids = tokenizer.encode(string, add_special_tokens=False)
    unknown = getattr(tokenizer, "unk_token_id", None)
    read = "".join(str(tokenizer.decode(ids, skip_special_tokens=False)).split())
    if (unknown is not None and unknown in ids) or "".join(string.split()) not in read:
        refuse(
            "stop",
            string,
            f"the model's tokens cannot write this text ({read!r:.60} is what they make of it), so "
            "it would never end a completion; use text that the model can write",
        )


def _end_of_turn(
    tokenizer: Any, renderer: PromptRenderer, ids: set[int], strings: Sequence[str]
) -> set[int]:
    """The token that closes an assistant's turn, if the chat template has one; warns if not."""
    after = after_a_turn(tokenizer, renderer.template_options)
    if after is None:
        _warn_once(
            "what the chat template writes after an assistant's turn could not be found; "
            f"completions end with the token ids {sorted(ids)}. If the model ends its turns with "
            "another token, name it in `stop_token_ids` or `stop`"
        )
        return set()
    special = tokenizer.get_added_vocab().values()
    closing = tokenizer.encode(after, add_special_tokens=False)
    before = 0
    while before < len(closing) and not tokenizer.decode(closing[before : before + 1]).strip():
        before += 1
    if before < len(closing) and closing[before] in special:
        return {int(closing[before])}
    if not any(after.find(string) >= 0 for string in strings):
        _warn_once(
            f"the chat template closes an assistant's turn with the text {after[:60]!r}, which is "
            f"no special token: completions end with the token ids {sorted(ids)} only. If the "
            f"model writes this text at the end, add `stop: [{after.strip()[:60]!r}]`"
        )
    return set()


@cache
def _warn_once(text: str) -> None:
    """Warn once in a process, although the stops are read by the check and by each runner."""
    logger.warning("%s", text)
