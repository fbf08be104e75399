"""Graders: what they read, what they refuse, and that nothing can hang or fool them."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllib_dapo.errors import DataError, SettingError
from rllib_dapo.rewards.grading.extract import clean, extract_robust, extract_strict
from rllib_dapo.rewards.grading.grade import GRADERS, Verdict, grade, parse_gold
from rllib_dapo.rewards.grading.normalize import normalize_robust


def test_arguments_swapped_are_noticed() -> None:
    assert grade("Answer: 42", "84/2").correct
    assert not grade("Answer: 84/2", "42").correct
    assert grade("So it is 34.\nAnswer: 34", "34").correct
    for name in GRADERS:
        with pytest.raises(DataError, match="worked solution"):
            grade("34", "So it is 34.\nAnswer: 34", name)


def test_how_a_verdict_came_about() -> None:
    assert grade("Answer: 34", "34") == Verdict(True, "34", "string")
    assert grade("Answer: 34.0", "34") == Verdict(True, "34.0", "value")
    assert grade("Answer: 35", "34") == Verdict(False, "35", "different")
    assert grade("I do not know", "34") == Verdict(False, None, "no_answer")
    assert grade("Answer: 1e999999999", "1").matched_by == "refused"
    assert grade("Answer: " + "9" * 1500, "9").matched_by == "refused"


def test_strict_reads_only_the_last_300_characters() -> None:
    assert not grade("Answer: 34\n" + "x" * 300, "34", "strict").correct
    assert grade("Answer: 34\n" + "x" * 280, "34", "strict").correct
    assert grade("Answer: 34\n" + "x" * 300, "34").correct


@pytest.mark.parametrize("grader", sorted(GRADERS))
def test_ground_truths_of_any_type(grader: str) -> None:
    for gold in (34, 34.0, np.int64(34), np.float32(34), "34"):
        assert grade("Answer: 34", gold, grader).correct
    assert grade("Answer: 1/2", "1/2", grader).correct
    assert grade("Answer: x+1", "x+1", grader).correct


@pytest.mark.parametrize(
    "gold",
    [
        *("", "  ", "$$", r"\boxed{}", "nan", float("nan"), float("inf"), None, True, [34]),
        *("1/0", r"\frac{1}{2", "1e9999999", "Because 2+2 is\nfour.", "word " * 100),
    ],
)
def test_unreadable_ground_truths_are_refused(gold: object) -> None:
    with pytest.raises(DataError):
        parse_gold(gold)
    with pytest.raises(DataError):
        grade("Answer: 34", gold)


def test_unknown_grader_suggests_the_nearest() -> None:
    with pytest.raises(SettingError, match="did you mean 'robust'") as caught:
        grade("Answer: 1", "1", "robost")
    assert caught.value.setting == "grader"


HOSTILE = {
    "braces": "{" * 10**6,
    "boxes": r"\boxed{" * 10**5,
    "nested boxes": r"\boxed{" * 10**5 + "}" * 10**5,
    "markers": "answer:" * 10**5,
    "marker and spaces": ("answer" + " " * 50) * 20_000,
    "answer is": "answer is " * 10**5,
    "digits": "Answer: " + "9" * 10**6,
    "fractions": "Answer: " + r"\frac" * 10**5,
    "commas": "Answer: " + "1,111" * 10**5,
    "short commas": "Answer: " + "1,1" * 600,
    "dollars": "Answer: " + "$" * 10**6,
    "text": "Answer: " + r"\text{" * 300 + "}" * 200,
    "backslashes": "\\" * 10**6,
    "tower": "Answer: 9**9**9**9",
    "latex tower": r"Answer: 5^{5^{5^{5}}}",
    "exponent": "Answer: 1e" + "9" * 900,
    "factorials": "Answer: 9" + "!" * 1000,
    "code": "Answer: __import__('os').system('touch /tmp/owned')",
    "parentheses": "Answer: " + "(" * 1000 + "1" + ")" * 999,
    "newlines": "Answer:" + "\n" * 10**6,
    "million": "x" * 10**6 + "\nAnswer: 35",
    "nul": "Answer: \0" * 10**5,
    "surrogate": "Answer: \ud800",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_are_wrong_and_quick(name: str) -> None:
    for grader in GRADERS:
        for gold in ("34", r"\sqrt{2}+x"):
            start = time.process_time()
            verdict = grade(HOSTILE[name], gold, grader)
            assert time.process_time() - start < 1
            assert not verdict.correct
            assert len(verdict.extracted or "") <= 2_000


@given(st.text() | st.text(alphabet="\\{}$boxedfra123.,-/%^_() \n*:Answer答案"))
@settings(max_examples=300, deadline=None)
def test_extracting_never_raises(text: str) -> None:
    for completion in (text, "Answer: " + text, "\\boxed{" + text, "\\boxed{" + text + "}"):
        extract_strict(completion)
        extract_robust(completion)
        for name in GRADERS:
            grade(completion, "34", name)
            grade(completion, "x+1", name)


_PIECES = st.lists(
    st.sampled_from(
        [
            *"123 .,=$%{}()^_\\ax-+",
            *(r"\frac", r"\sqrt", r"\text{", r"\boxed{", "an ", " cm", "π", r"\left"),
            *(r"\dfrac", "units", r"\,", "answer is", "**", "½"),
        ]
    ),
    max_size=14,
).map("".join)


@given(st.text() | _PIECES)
@settings(max_examples=500, deadline=None)
def test_normalising_is_idempotent(text: str) -> None:
    for normalise in (clean, normalize_robust):
        once = normalise(text)
        assert normalise(once) == once


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_integers_are_equal_exactly_when_they_are(answer: int, gold: int) -> None:
    assert grade(f"Answer: {answer}", gold).correct == (answer == gold)
    for form in (f"{gold}", f"{gold:,}", f"{gold}.0", f"${gold}$", rf"\boxed{{{gold}}}"):
        assert grade(f"Answer: {form}", gold).correct


def test_graders_work_in_threads_and_event_loops() -> None:
    verdicts: list[bool] = []
    thread = threading.Thread(
        target=lambda: verdicts.extend(grade("Answer: 34", "34", g).correct for g in GRADERS)
    )
    thread.start()
    thread.join()

    async def in_loop() -> bool:
        return grade("Answer: 34", "34").correct

    assert verdicts == [True, True]
    assert asyncio.run(in_loop())
