"""Phrases of checking, reflecting and backtracking, counted."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from rllib_dapo.rewards.reflection import PHRASES, count_reflections


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("The sum is 4. Answer: 4", 0),
        ("", 0),
        ("Wait, that is not it.", 1),
        ("WAIT, let me check: 2+2=4. Hmm, yes.", 3),
        ("But wait, there is more", 1),  # "but wait" and "wait," overlap
        ("Let’s double-check", 1),
        ("let  me\n\tverify this", 1),
        ("Let me try again with x = 2. Try another approach!", 2),
        ("hmm hmm hmm", 3),
        ("Hmmm...", 1),
        ("Is that right?", 1),
        ("等一下，我算错了。重新计算：", 3),
        ("这不对，应该是4", 1),
        ("不对！", 1),
        ("让我验证一下", 1),  # 让我验证 and 验证一下 overlap
        ("Therefore, 让我检查。Hold on", 2),
    ],
)
def test_phrases_are_counted_once_each(text, count):
    assert count_reflections(text) == count


@pytest.mark.parametrize(
    "text",
    [
        "Tom has to wait 5 minutes for the bus.",
        "How long does she wait?",
        "await, waiter, waited,",
        "The shop threshold only holds on.",  # whole words: "holds on"
        "a household online",
        "The backtracking of 3 trains",  # the noun of an algorithm, another word
        "hmmmmm",
        "苹果、香蕉等等，共有3种",
        "不对称的图形",
        "She paid by check and the bank will verify the sum.",
        "Alternatively the sum is 5, a contradiction.",
    ],
)
def test_plain_words_of_problems_are_not_reflection(text):
    assert count_reflections(text) == 0


def test_the_list_is_in_the_form_that_is_searched():
    assert len(set(PHRASES)) == len(PHRASES)
    for phrase in PHRASES:
        assert phrase == " ".join(phrase.lower().split())
        assert not set(phrase) & set("’‘，。！？")
        assert count_reflections(f"so. {phrase.upper()} 4") == 1


def slow_count(text: str) -> int:
    """By one regular expression, for texts in which no two phrases overlap."""
    words = "|".join(re.escape(p) for p in sorted(PHRASES, key=len, reverse=True))
    return len(re.findall(rf"(?<![a-z])(?:{words})(?![a-z])", text))


@examples(60)
@given(
    st.lists(st.sampled_from(["hold on", "hmm", "backtrack", "x = 2", "the", "验算"]), max_size=9)
)
def test_a_regular_expression_finds_as_many(parts):
    text = "; ".join(parts)
    assert count_reflections(text) == slow_count(text)


@examples(100)
@given(st.text(max_size=60) | st.lists(st.sampled_from(PHRASES), max_size=8).map("".join))
def test_any_text_has_a_count(text):
    assert 0 <= count_reflections(text) <= len(text)
    assert count_reflections(text) == count_reflections(text.upper().lower())


@pytest.mark.parametrize("unit", ["let me ", "hmm", "hmm ", "wait", "等", " ", "a", "let me re-"])
def test_time_grows_no_faster_than_a_hostile_text(unit):
    text = unit * (1_000_000 // len(unit))
    started = time.process_time()
    count_reflections(text)
    assert time.process_time() - started < 3.0  # about 0.1 s
