"""Variables of the chat template, the date it writes, and what closes an assistant's turn."""

from __future__ import annotations

from typing import Any

import pytest
from small_tokenizers import CHAT_TEMPLATE, make_tokenizer

from rllib_dapo.data.chat_template import after_a_turn
from rllib_dapo.data.prompts import PromptRenderer
from rllib_dapo.errors import SettingError

THINKING = CHAT_TEMPLATE + (
    "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
    "<think></think>{% endif %}"
)
TODAY = "{{ strftime_now('%Y-%m-%d') }}" + CHAT_TEMPLATE
TODAY_UNLESS_SAID = (
    "{% if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{{ date_string }}" + CHAT_TEMPLATE
)


def text(template: str, given: dict[str, Any]) -> str:
    renderer = PromptRenderer(
        make_tokenizer(template), template="plain", chat_template_kwargs=given
    )
    prompt = renderer.render("1+1")
    assert renderer.lengths(["1+1"]).tolist() == [len(prompt.token_ids)]
    return prompt.text


def test_variables_reach_the_template():
    assert text(THINKING, {"enable_thinking": False}).endswith("<think></think>")
    assert text(THINKING, {"enable_thinking": True}) == text(THINKING, {})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"enable_thinkng": False}, "did you mean `enable_thinking`"),
        ({"tokenize": False}, "sets this itself"),
        ({"add_generation_prompt": False}, "sets this itself"),
        ({"continue_final_message": True}, "sets this itself"),
        ({"enable_thinking": object()}, "use texts, numbers"),
        ({"enable_thinking": {1: 2}}, "use texts, numbers"),
        ({"enable_thinking": [float("nan")]}, "use a finite number"),
    ],
)
def test_what_no_template_can_use_is_refused(given, said):
    with pytest.raises(SettingError, match="chat_template_kwargs") as caught:
        text(THINKING, given)
    assert said in str(caught.value)


def test_without_a_chat_template_nothing_reads_the_variables():
    with pytest.raises(SettingError, match=r"chat_template_kwargs.*leave it out"):
        PromptRenderer(make_tokenizer(), chat_template_kwargs={"enable_thinking": False})
    with pytest.raises(SettingError, match="chat='never'"):
        PromptRenderer(
            make_tokenizer(THINKING), chat="never", chat_template_kwargs={"enable_thinking": True}
        )


@pytest.mark.parametrize("template", [TODAY, TODAY_UNLESS_SAID])
def test_a_template_that_writes_todays_date_needs_a_day(template):
    with pytest.raises(SettingError, match="writes today's date") as caught:
        text(template, {})
    assert "strftime_now: '" in str(caught.value)
    assert "2026" in text(template, {"strftime_now": "2026-07-01"})
    assert text(template, {"strftime_now": "2026-07-01"}) != text(
        template, {"strftime_now": "2026-07-02"}
    )


def test_a_date_that_the_template_takes_as_text_is_enough():
    assert text(TODAY_UNLESS_SAID, {"date_string": "1 Jul"}).startswith("1 Jul")


@pytest.mark.parametrize("day", ["today", "1 Jul 2026", 2026, None])
def test_a_day_is_a_date(day):
    with pytest.raises(SettingError, match=r"chat_template_kwargs.strftime_now"):
        text(TODAY, {"strftime_now": day})


@pytest.mark.parametrize(
    ("template", "after"),
    [
        (CHAT_TEMPLATE, "<eos>"),
        ("{% for m in messages %}[{{ m.role }}]{{ m.content }}#{% endfor %}", "#"),
        ("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", "[user]1"),
        ("{% for m in messages %}{{ raise_exception('no') }}{% endfor %}", None),
        ("the same for all", None),
    ],
)
def test_what_follows_an_assistants_turn(template, after):
    assert after_a_turn(make_tokenizer(template), {}) == after
