"""What a run asks of the tokenizer's chat template beside the messages themselves.

`chat_template_kwargs` reach the template as variables. A template may write today's date; the
date is then one of these variables, because a run that is resumed on another day has to pose the
same prompts. And the template knows the token that ends a turn, which a model writes where its
completion ends.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, Protocol

from rllib_dapo.errors import refuse

_SETTING = "chat_template_kwargs"
_CLOCK = "strftime_now"
_SET_BY_US = frozenset({
    "conversation", "messages", "chat_template", "add_generation_prompt",
    "continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors",
    "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
})  # fmt: skip
"""What the call of `apply_chat_template` says itself."""
_PASSED_BY_NAME = frozenset({"tools", "documents"})
"""Arguments of `apply_chat_template` that reach the template under their own names."""
_MARK = "QZX"  # a turn that no template contains and that trimming does not change


class ChatTokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    chat_template: Any

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Text or ids of a chat."""


def template_options(tokenizer: ChatTokenizer, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords for `apply_chat_template` that `chat_template_kwargs` stand for.

    The key `strftime_now` is a date such as `2026-07-01`: the day that the template's function of
    this name sees.

    Raises:
        SettingError: a key is not the template's, a value is not plain data, or the template
            writes today's date and no date is given.
    """
    template = _source(tokenizer)
    for key, value in given.items():
        _check_key(key, value, template)
        _check_plain(value, f"{_SETTING}.{key}")
    options = dict(given)
    if _CLOCK in options:
        options[_CLOCK] = _clock(options[_CLOCK])
    elif _reads_the_clock(tokenizer, template, options):
        named = ", or `date_string` as the template writes it" if "date_string" in template else ""
        refuse(
            _SETTING,
            dict(given),
            "the chat template writes today's date, so a run that is resumed on another day would "
            f"pose other prompts. Fix the day: chat_template_kwargs: {{{_CLOCK}: "
            f"'{date.today().isoformat()}'}}{named}",
        )
    return options


def todays_date(tokenizer: ChatTokenizer) -> dict[str, Any]:
    """`chat_template_kwargs` that fix the day to today, for work that is never resumed."""
    writes = _CLOCK in _source(tokenizer)
    return {_CLOCK: date.today().isoformat()} if writes else {}


def after_a_turn(tokenizer: ChatTokenizer, options: Mapping[str, Any]) -> str | None:
    """The text that the template writes after an assistant's turn, or None if it is not known.

    Where the template writes nothing after the last turn, the text before the next turn counts.
    """
    user, turn = {"role": "user", "content": "1"}, {"role": "assistant", "content": _MARK}
    for messages in ([user, turn], [user, turn, user]):
        try:
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=False, **options
            )
        except Exception:  # noqa: BLE001 - a chat template is foreign code (Jinja)
            return None
        _, mark, after = str(text).rpartition(_MARK)
        if mark and after.strip():
            return after
    return None


def _source(tokenizer: ChatTokenizer) -> str:
    """The text of the template; of all templates, if the tokenizer has several."""
    template = tokenizer.chat_template
    return "\n".join(template.values()) if isinstance(template, Mapping) else str(template)


def _check_key(key: str, value: Any, template: str) -> None:
    """Refuse what the call sets itself, and what would change nothing."""
    if key in _SET_BY_US:
        refuse(f"{_SETTING}.{key}", value, "rendering a prompt sets this itself; leave it out")
    words = set(re.findall(r"[A-Za-z_]\w*", template))
    if key in words or key in _PASSED_BY_NAME:
        return
    near = difflib.get_close_matches(key, words, n=1, cutoff=0.6)
    hint = f"; did you mean `{near[0]}`?" if near else ""
    refuse(_SETTING, {key: value}, f"the model's chat template does not read `{key}`{hint}")


def _check_plain(value: Any, name: str, depth: int = 0) -> None:
    """Plain data only: what JSON can say."""
    if depth > 20:
        refuse(name, "…", "nested too deeply; use plain texts, numbers, lists and mappings")
    if isinstance(value, float) and not math.isfinite(value):
        refuse(name, value, "use a finite number")
    if value is None or isinstance(value, (str, bool, int, float)):
        return
    if isinstance(value, (list, tuple)):
        for item in value:
            _check_plain(item, name, depth + 1)
    elif isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        for key, item in value.items():
            _check_plain(item, f"{name}.{key}", depth + 1)
    else:
        remedy = "use texts, numbers, true, false, null, and lists and mappings of them"
        if isinstance(value, date):
            remedy = "put a date in quotes, as YAML turns it into something else otherwise"
        refuse(name, value, remedy)


def _clock(day: Any) -> Any:
    """A function like `strftime_now` that always sees the same day."""
    try:
        return datetime.combine(date.fromisoformat(day), datetime.min.time()).strftime
    except (TypeError, ValueError):
        refuse(f"{_SETTING}.{_CLOCK}", day, "use a day such as '2026-07-01', in quotes")


def _reads_the_clock(tokenizer: ChatTokenizer, template: str, options: Mapping[str, Any]) -> bool:
    """Whether the rendered text changes with the day."""
    if _CLOCK not in template:
        return False
    messages = [{"role": "user", "content": "1"}]
    texts = set()
    for day in ("2001-02-03", "2014-11-25"):
        try:
            text = tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=True,
                **{**options, _CLOCK: _clock(day)},
            )
        except Exception:  # noqa: BLE001 - the renderer tries the template and says why it refuses
            return False
        texts.add(text)
    return len(texts) > 1
