"""Prompts: the ids of the chat template, BOS exactly once, braces intact, nothing cut."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from small_tokenizers import CHAT_TEMPLATE, make_tokenizer

from rllib_dapo import DAPOConfig
from rllib_dapo.data.prompts import NEEDS_ROBUST, TEMPLATES, PromptRenderer, PromptTooLong
from rllib_dapo.errors import DataError, SettingError
from rllib_dapo.rewards.grading.grade import grade

NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
)


def test_chat_ids_are_those_of_the_template_with_one_bos() -> None:
    tokenizer = make_tokenizer(CHAT_TEMPLATE)
    shots = [{"problem": "1+1", "answer": "Answer: 2"}]
    renderer = PromptRenderer(tokenizer, template="dapo", system="Be brief.", few_shot=shots)
    prompt = renderer.render("What is 2+3?")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": TEMPLATES["dapo"].replace("{problem}", "1+1")},
        {"role": "assistant", "content": "Answer: 2"},
        {"role": "user", "content": TEMPLATES["dapo"].replace("{problem}", "What is 2+3?")},
    ]
    expected = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert prompt.token_ids.tolist() == expected
    assert prompt.token_ids.dtype == np.int64
    assert expected.count(1) == 1
    assert prompt.text.endswith("<eos><|assistant|>")
    # the trap: rendering and tokenising again
    assert tokenizer.encode(prompt.text)[:2] == [1, 1]


def test_chat_messages_keep_their_wording() -> None:
    tokenizer = make_tokenizer(CHAT_TEMPLATE)
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q {problem}"}]
    renderer = PromptRenderer(tokenizer, template="dapo")
    assert renderer.messages(chat) == chat
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert renderer.render(chat).token_ids.tolist() == ids
    other = PromptRenderer(tokenizer, system="T")
    assert other.messages(chat) == [{"role": "system", "content": "T"}, chat[1]]
    assert chat[0]["content"] == "S"


@pytest.mark.parametrize("bos", [True, False])
def test_base_models_get_plain_text_and_their_own_bos(bos: bool) -> None:
    tokenizer = make_tokenizer(None, bos=bos)
    prompt = PromptRenderer(tokenizer, template="plain").render("1+1=?")
    assert prompt.text == "1+1=?\n"
    assert prompt.token_ids.tolist() == tokenizer.encode("1+1=?\n")
    assert (prompt.token_ids[0] == 1) is np.bool_(bos)


def test_a_closing_eos_of_the_tokenizer_is_left_off() -> None:
    tokenizer = make_tokenizer(None, eos=True)
    assert tokenizer.encode("1")[-1] == 2
    ids = PromptRenderer(tokenizer, template="plain").render("1").token_ids
    assert ids.tolist() == tokenizer.encode("1\n")[:-1]


def test_a_template_that_spells_bos_out_does_not_double_it() -> None:
    ids = PromptRenderer(make_tokenizer(), template="<bos>{problem}").render("1").token_ids
    assert ids.tolist() == make_tokenizer().encode("1")
    with pytest.raises(SettingError, match="two BOS"):
        PromptRenderer(make_tokenizer("{{ bos_token }}" + CHAT_TEMPLATE))


def test_chat_modes() -> None:
    chatty, base = make_tokenizer(CHAT_TEMPLATE), make_tokenizer()
    assert PromptRenderer(chatty, chat="auto").uses_chat
    assert PromptRenderer(chatty, chat="always").uses_chat
    assert not PromptRenderer(chatty, chat="never").uses_chat
    assert not PromptRenderer(base, chat="auto").uses_chat
    with pytest.raises(SettingError, match="no chat template") as caught:
        PromptRenderer(base, chat="always")
    assert caught.value.setting == "chat"
    with pytest.raises(SettingError, match="use 'auto', 'always' or 'never'"):
        PromptRenderer(base, chat="yes")  # type: ignore[arg-type]


def test_plain_text_with_system_and_few_shot() -> None:
    shots = [{"problem": "1+1", "answer": "Answer: 2"}]
    renderer = PromptRenderer(make_tokenizer(), template="plain", system="S", few_shot=shots)
    assert renderer.render("2+2").text == "S\n\n1+1\nAnswer: 2\n\n2+2\n"
    chat = [{"role": "system", "content": "X"}, {"role": "user", "content": "Q"}]
    assert renderer.render(chat).text == "S\n\n1+1\nAnswer: 2\n\nQ\n"
    assert PromptRenderer(make_tokenizer()).render(chat).text == "X\n\nQ\n"


def test_a_renderer_from_settings_has_all_of_them() -> None:
    few_shot = [{"problem": "1+1", "answer": "2"}]
    config = DAPOConfig().training(
        prompt_template="{problem}=", system_prompt="7", few_shot=few_shot, max_prompt_length=14
    )
    renderer = PromptRenderer.from_settings(config)
    assert not renderer.uses_chat
    assert renderer.render("3+4").text == "7\n\n1+1=2\n\n3+4="
    assert len(renderer.render("3+4").token_ids) == 14
    with pytest.raises(PromptTooLong):
        renderer.render("3+45")
    with pytest.raises(SettingError, match="no chat template"):
        PromptRenderer.from_settings(DAPOConfig().training(chat="always"))


def test_braces_survive() -> None:
    renderer = PromptRenderer(make_tokenizer(), template=r"\boxed{} {0} {problem}!")
    problem = r"\frac{1}{2} {problem} {} %s {x:>9}"
    assert renderer.render(problem).text == rf"\boxed{{}} {{0}} {problem}!"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("dappo", "did you mean 'dapo'"),
        ("no slot", "this holds it 0 times"),
        ("{problem}{problem}", "this holds it 2 times"),
    ],
)
def test_templates_are_checked(template: str, message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        PromptRenderer(make_tokenizer(), template=template)
    assert caught.value.setting == "prompt_template"


@pytest.mark.parametrize(
    "shots", [["x"], [{"problem": "1"}], [{"problem": "1", "answer": 2}], [{"q": "", "answer": ""}]]
)
def test_few_shot_turns_are_checked(shots: Any) -> None:
    with pytest.raises(SettingError) as caught:
        PromptRenderer(make_tokenizer(), few_shot=shots)
    assert caught.value.setting == "few_shot[0]"


def test_a_template_without_a_system_role_is_noticed_at_once() -> None:
    tokenizer = make_tokenizer(NO_SYSTEM + CHAT_TEMPLATE)
    PromptRenderer(tokenizer)
    with pytest.raises(SettingError, match="no system role") as caught:
        PromptRenderer(tokenizer, system="S")
    assert caught.value.setting == "system_prompt"


@pytest.mark.parametrize("chat_template", [None, CHAT_TEMPLATE])
def test_too_long_prompts_are_refused_never_cut(chat_template: str | None) -> None:
    tokenizer = make_tokenizer(chat_template)
    length = len(PromptRenderer(tokenizer, template="plain").render("1+1").token_ids)
    exact = PromptRenderer(tokenizer, template="plain", max_prompt_length=length)
    assert len(exact.render("1+1").token_ids) == length
    with pytest.raises(PromptTooLong) as caught:
        exact.render("1+12")
    assert isinstance(caught.value, DataError)
    assert (caught.value.num_tokens, caught.value.limit) == (length + 1, length)
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert str(copy) == str(caught.value)
    with pytest.raises(SettingError, match="max_prompt_length=0"):
        PromptRenderer(tokenizer, max_prompt_length=0)


@pytest.mark.parametrize(
    ("template", "answer"), [("dapo", "Answer: 34"), ("boxed", r"So it is \boxed{34}.")]
)
def test_an_answer_as_the_prompt_asks_for_it_is_read(template: str, answer: str) -> None:
    asked = "Answer:" if template == "dapo" else r"\boxed"
    assert asked in TEMPLATES[template]
    assert grade("12 + 22 is 34.\n" + answer, "34").correct
    assert grade("12 + 22 is 34.\n" + answer, "34", "strict").correct is (
        template not in NEEDS_ROBUST
    )


def test_transformers_is_not_needed_to_import() -> None:
    import subprocess
    import sys

    code = "import sys, rllib_dapo.data.prompts; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
