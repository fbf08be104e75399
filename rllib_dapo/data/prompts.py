"""Render a problem as the token ids of a prompt.

With a chat template the ids are exactly those of
`tokenizer.apply_chat_template(messages, add_generation_prompt=True)`; rendering to text and
tokenising that text would add a second BOS. Base models have no chat template. They get
plain text with the special tokens that the tokenizer adds by itself, so a BOS appears
exactly where the model was trained with one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, get_args

import numpy as np

from rllib_dapo.data.chat_template import template_options
from rllib_dapo.errors import DataError, SettingError, refuse
from rllib_dapo.model.facts import load_tokenizer, model_facts
from rllib_dapo.settings.choices import ChatMode
from rllib_dapo.settings.general import DAPOSettings
from rllib_dapo.types import IntArray, Prompt

TEMPLATES: Mapping[str, str] = MappingProxyType(
    {
        "plain": "{problem}\n",
        "dapo": (
            "Work through the math problem below, one step at a time. Close your completion with"
            " a line of the form Answer: $Answer, where $Answer stands for the final answer,"
            ' and write nothing after it.\n\n{problem}\n\nDo not forget the last line: "Answer:"'
            " and then the final answer.\n"
        ),
        "boxed": (
            "{problem}\n\nReason step by step and give the final answer, and it alone, inside"
            " \\boxed{} at the end.\n"
        ),
    }
)
"""The named templates. `dapo` asks for the form that both graders read, `boxed` for a form that
the strict grader does not read. `plain` asks for no form; it is for models that know the form
from training or from few-shot examples."""

_SLOT = "{problem}"


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    chat_template: Any
    bos_token_id: Any
    eos_token_id: Any

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""

    def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> Any:
        """Text of token ids."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Text or ids of a chat."""

    def __call__(self, text: Any, **options: Any) -> Any:
        """Token ids of many texts at once."""


class PromptTooLong(DataError):  # noqa: N818 - a condition to drop and count, not a defect
    """A prompt exceeds the limit. It is not cut, because half a chat header is not a prompt.

    Args:
        num_tokens: the length of the prompt.
        limit: `max_prompt_length`.
    """

    def __init__(self, num_tokens: int, limit: int) -> None:
        super().__init__(
            f"a prompt of {num_tokens} tokens exceeds max_prompt_length={limit}; drop the"
            " problem or raise the limit"
        )
        self.num_tokens = num_tokens
        self.limit = limit

    def __reduce__(self) -> tuple[type[PromptTooLong], tuple[int, int]]:
        """Pickle the arguments, because Ray sends errors from process to process."""
        return type(self), (self.num_tokens, self.limit)


class PromptRenderer:
    """Renders observations of an environment for one tokenizer.

    Args:
        tokenizer: see `Tokenizer`; not changed.
        template: a name in `TEMPLATES`, or a text that holds `{problem}` once. It is
            applied to observations that are texts; chat messages keep their own wording.
        system: a system message, or None. It replaces the system message of a chat.
        few_shot: worked examples, each `{"problem": …, "answer": …}`. They stand before the
            problem, in the same template: as chat turns, or as text between blank lines.
        chat: whether to use the tokenizer's chat template: `always`, `never`, or `auto` (if
            it has one).
        chat_template_kwargs: variables for the chat template, see `chat_template`.
        max_prompt_length: the longest prompt in tokens, special tokens included; None for no
            limit.

    Attributes:
        uses_chat: whether prompts go through the chat template.
        template_options: further keywords of `apply_chat_template`.

    Raises:
        SettingError: an argument is impossible, or the chat template refuses the messages
            (some have no system role).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        template: str = "dapo",
        system: str | None = None,
        few_shot: Sequence[Mapping[str, str]] = (),
        chat: ChatMode = "auto",
        chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
        max_prompt_length: int | None = None,
    ) -> None:
        if chat not in get_args(ChatMode):
            raise SettingError(f"chat={chat!r}: use 'auto', 'always' or 'never'", "chat")
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if chat == "always" and not has_template:
            raise SettingError(
                "chat='always', but the tokenizer has no chat template: use 'auto' or 'never' for"
                " a base model, or set tokenizer.chat_template",
                "chat",
            )
        if max_prompt_length is not None and max_prompt_length < 1:
            raise SettingError(
                f"max_prompt_length={max_prompt_length}: use 1 or more, or None",
                "max_prompt_length",
            )
        self.uses_chat = chat != "never" and has_template
        self.max_prompt_length = max_prompt_length
        self._tokenizer = tokenizer
        self._head, self._tail = _split_template(template)
        self._system = system
        self._few_shot = _check_few_shot(few_shot)
        self.template_options: dict[str, Any] = {}
        if self.uses_chat:
            self.template_options = template_options(tokenizer, chat_template_kwargs)
            self._try_chat_template()
        elif chat_template_kwargs:
            refuse(
                "chat_template_kwargs",
                dict(chat_template_kwargs),
                f"prompts do not go through a chat template (chat={chat!r}, and the tokenizer has "
                f"{'one' if has_template else 'none'}); leave it out",
            )

    @classmethod
    def from_settings(cls, settings: DAPOSettings) -> PromptRenderer:
        """Return the renderer for the tokenizer of the run's model and its prompt settings.

        Raises:
            SettingError: as the constructor, or the tokenizer cannot be loaded.
        """
        trust = settings.trust_remote_code
        facts = model_facts(settings.language_model, trust_remote_code=trust)
        return cls(
            load_tokenizer(facts.path, trust_remote_code=trust),
            template=settings.prompt_template,
            system=settings.system_prompt,
            few_shot=settings.few_shot,
            chat=settings.chat,
            chat_template_kwargs=settings.chat_template_kwargs,
            max_prompt_length=settings.max_prompt_length,
        )

    def render(self, observation: str | Sequence[Mapping[str, str]]) -> Prompt:
        """The prompt for one observation, a text or a list of chat messages.

        Raises:
            PromptTooLong: it exceeds `max_prompt_length`.
        """
        token_ids, text = (
            self._render_chat(self.messages(observation))
            if self.uses_chat
            else self._render_plain(self._plain_text(observation))
        )
        if self.max_prompt_length is not None and len(token_ids) > self.max_prompt_length:
            raise PromptTooLong(len(token_ids), self.max_prompt_length)
        return Prompt(np.array(token_ids, dtype=np.int64), text)

    def lengths(self, observations: Sequence[str | Sequence[Mapping[str, str]]]) -> IntArray:
        """int64[n], the number of tokens of each prompt that `render` would make.

        The limit does not apply. The tokenizer gets all prompts at once, because fast
        tokenizers then use all cores.
        """
        if not observations:
            return np.zeros(0, dtype=np.int64)
        if self.uses_chat:
            return self._chat_lengths([self.messages(observation) for observation in observations])
        texts = [self._plain_text(observation) for observation in observations]
        rows = self._tokenizer(texts, add_special_tokens=True, verbose=False)["input_ids"]
        lengths = [
            len(ids) if self._is_final(ids) else len(self._render_plain(text)[0])
            for ids, text in zip(rows, texts, strict=True)
        ]
        return np.array(lengths, dtype=np.int64)

    def _chat_lengths(self, chats: list[list[dict[str, str]]]) -> IntArray:
        whole = [chat for chat in chats if chat[-1]["role"] != "assistant"]
        rows = whole and self._apply(
            whole, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        lengths = iter([len(ids) for ids in rows])
        return np.array(
            [
                len(self._render_chat(chat)[0])
                if chat[-1]["role"] == "assistant"
                else next(lengths)
                for chat in chats
            ],
            dtype=np.int64,
        )

    def messages(self, observation: str | Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        """The chat posed for an observation: system, few-shot turns, problem."""
        if isinstance(observation, str):
            asked = [{"role": "user", "content": self._fill(observation)}]
        else:
            asked = [dict(message) for message in observation]
        opening = []
        if asked and asked[0]["role"] == "system":
            opening = [asked.pop(0)]
        if self._system is not None:
            opening = [{"role": "system", "content": self._system}]
        for shot in self._few_shot:
            opening.append({"role": "user", "content": self._fill(shot["problem"])})
            opening.append({"role": "assistant", "content": shot["answer"]})
        return opening + asked

    def _fill(self, problem: str) -> str:
        # str.format would fail on the LaTeX braces in problems and templates.
        return self._head + problem + self._tail

    def _render_chat(self, messages: list[dict[str, str]]) -> tuple[list[int], str]:
        if messages[-1]["role"] == "assistant":
            text = self._begun_text(messages)
            return list(self._tokenizer.encode(text, add_special_tokens=False)), text
        ids = self._apply(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        return list(ids), self._apply(messages, add_generation_prompt=True, tokenize=False)

    def _apply(self, messages: Any, **arguments: Any) -> Any:
        """Apply the chat template, with the options that were given for it."""
        return self._tokenizer.apply_chat_template(messages, **arguments, **self.template_options)

    def _begun_text(self, messages: list[dict[str, str]]) -> str:
        """The text of a chat whose last message is the beginning of a completion."""
        begun = messages[-1]["content"]
        try:
            text: str = self._apply(messages, continue_final_message=True, tokenize=False)
        except ValueError:  # The template drops a part of the message, such as `<think>`.
            text = ""
        if text.endswith(begun):
            return text
        if text and text.endswith(begun.rstrip()):  # The template trims messages.
            return text + begun[len(begun.rstrip()) :]
        return str(self._apply(messages[:-1], add_generation_prompt=True, tokenize=False)) + begun

    def _plain_text(self, observation: str | Sequence[Mapping[str, str]]) -> str:
        parts = [] if self._system is None else [self._system + "\n\n"]
        parts += [f"{self._fill(shot['problem'])}{shot['answer']}\n\n" for shot in self._few_shot]
        if isinstance(observation, str):
            return "".join(parts) + self._fill(observation)
        asked = [m["content"] for m in observation if self._system is None or m["role"] != "system"]
        is_begun = observation[-1]["role"] == "assistant"  # the model continues the last message
        return "".join(parts) + "\n\n".join(asked) + ("" if is_begun else "\n")

    def _render_plain(self, text: str) -> tuple[list[int], str]:
        tokenizer = self._tokenizer
        ids = list(tokenizer.encode(text, add_special_tokens=True))
        bare = list(tokenizer.encode(text, add_special_tokens=False))
        bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
        # Some tokenizers close every text with EOS. A model that has to continue after its
        # own end of text writes something unrelated.
        if eos is not None and len(ids) > len(bare) and ids[-1:] == [eos] != bare[-1:]:
            ids.pop()
        # The template may spell out a BOS and the tokenizer add another one.
        if bos is not None and ids[:2] == [bos, bos]:
            ids.pop(0)
        return ids, text

    def _is_final(self, ids: Sequence[int]) -> bool:
        """Whether `_render_plain` would keep all of these ids."""
        bos, eos = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        closed = eos is not None and list(ids[-1:]) == [eos]
        doubled = bos is not None and list(ids[:2]) == [bos, bos]
        return not closed and not doubled

    def _try_chat_template(self) -> None:
        try:
            ids, _ = self._render_chat(self.messages("1 + 1"))
        except Exception as error:  # a chat template is foreign code (Jinja)
            culprit = "system_prompt" if self._system is not None else "chat"
            raise SettingError(
                f"the tokenizer's chat template refuses these messages ({error}): it may have no"
                " system role; put the instruction into the template instead, or use chat='never'",
                culprit,
            ) from error
        bos = self._tokenizer.bos_token_id
        if bos is not None and ids[:2] == [bos, bos]:
            raise SettingError(
                "the tokenizer's chat template begins with two BOS tokens: repair"
                " tokenizer.chat_template",
                "chat",
            )


def _split_template(template: str) -> tuple[str, str]:
    text = TEMPLATES.get(template, template)
    found = text.count(_SLOT)
    if found == 1:
        head, _, tail = text.partition(_SLOT)
        return head, tail
    near = difflib.get_close_matches(template, TEMPLATES, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise SettingError(
        f"prompt_template={template!r:.80}: a template is one of {', '.join(TEMPLATES)}, or a text"
        f" that holds {_SLOT} exactly once; this holds it {found} times{hint}",
        "prompt_template",
    )


def _check_few_shot(few_shot: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    shots = []
    for number, shot in enumerate(few_shot):
        name = f"few_shot[{number}]"
        if not isinstance(shot, Mapping) or set(shot) != {"problem", "answer"}:
            found = sorted(shot) if isinstance(shot, Mapping) else type(shot).__name__
            raise SettingError(f"{name}: found {found}, use 'problem' and 'answer'", name)
        if not all(isinstance(text, str) for text in shot.values()):
            raise SettingError(f"{name}: problem and answer must be texts (quote numbers)", name)
        shots.append(dict(shot))
    return shots
