"""How answers and ground truths are read: a table of verdicts, and products of forms.

The form of an answer (delimiters, emphasis, tags, boxes, where a unit stands) never decides.
"""

from __future__ import annotations

import time
from itertools import product

import pytest
from gold_forms import GOLD_FORMS, ONE_VALUE
from verdicts_of_reading import NUMBERS, VALUES

from rllib_dapo.rewards.grading.grade import grade, parse_gold

TABLE = [*NUMBERS, *VALUES]


@pytest.mark.parametrize(("text", "gold", "right"), TABLE)
def test_verdicts(text: str, gold: str, right: bool) -> None:
    assert grade(text, gold).correct is right


def test_the_table_is_as_large_as_promised() -> None:
    assert len(TABLE) >= 250


@pytest.mark.parametrize("gold", sorted({gold for _, gold, _ in TABLE}))
def test_every_ground_truth_accepts_itself(gold: str) -> None:
    for form in ("Answer: {}", r"\boxed{{{}}}", "The answer is {}.", "<answer>{}</answer>"):
        assert grade(form.format(gold), gold).correct


def test_no_ground_truth_accepts_another_value() -> None:
    """Golds that accept each other's text are written differently, but are one value."""
    golds = sorted({gold for _, gold, _ in TABLE})
    for first, second in product(golds, golds):
        if grade(f"Answer: {first}", second).correct:
            assert grade(f"Answer: {second}", first).correct


MARKS = [
    *("{}", "${}$", "$${}$$", r"\({}\)", r"\[{}\]", "**{}**", "__{}__", "*{}*", "`{}`"),
    *("**${}$**", "$ {} $", r"\textbf{{{}}}", r"\boxed{{{}}}", r"$\boxed{{{}}}$", r"$\boxed {}$"),
    *("<b>{}</b>", r"$\mathbf{{{}}}$", "**{}"),
]
PLACES = [
    *("Answer: {}", "**Answer:** {}", "Answer:\n{}", "<answer>{}</answer>", "### Answer\n{}"),
    *("The answer is {}", "Answer: {}.", "Final Answer: {}\n"),
]
UNITS = ["", " cm", " square units", r" \text{ cm}", r"\text{ cm}^2", " dollars", " llamas"]


@pytest.mark.parametrize("mark", MARKS)
def test_no_form_of_a_number_decides(mark: str) -> None:
    for place, unit in product(PLACES, UNITS):
        for value, right in (("34", True), ("35", False), ("30+4", False), ("34 or 35", False)):
            if value not in ("34", "35") and mark == r"$\boxed {}$":
                continue  # TeX boxes only the first token.
            inside = place.format(mark.format(value + unit))
            behind = place.format(mark.format(value) + unit)
            assert grade(inside, "34").correct is right, inside
            assert grade(behind, "34").correct is right, behind


@pytest.mark.parametrize("mark", MARKS[:12])
def test_no_form_of_an_item_decides(mark: str) -> None:
    for join in (", ", " and ", " or "):
        answer = mark.format("8") + join + mark.format("4")
        assert grade(f"Answer: {answer}", "4, 8").correct, answer
        assert not grade(f"Answer: {answer}", "8").correct
        assert not grade(f"Answer: {answer}", "8, 5").correct
        assert grade("Answer: 8, 4", parse_gold(answer)).correct
        assert not grade("Answer: 8", parse_gold(answer)).correct


@pytest.mark.parametrize("form", [*PLACES[:4], r"\boxed{{{}}}", "The answer is {}."])
def test_every_form_of_a_ground_truth_accepts_itself(form: str) -> None:
    assert [gold for gold in GOLD_FORMS if not grade(form.format(gold), gold).correct] == []


def test_no_form_of_a_ground_truth_accepts_another_value() -> None:
    read = [(gold, parse_gold(gold)) for gold in GOLD_FORMS]
    for answer, (text, gold) in product(GOLD_FORMS, read):
        if answer != text and grade(f"Answer: {answer}", gold).correct:
            assert any({answer, text} <= same for same in ONE_VALUE), (answer, text)


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed(" * 15_000,
        "<answer>" * 12_000,
        "<answer></answer>" * 6_000 + "</answer>",
        "Answer: " + "a** " * 490,
        "Answer: " + "**a " * 490,
        "Answer: " + "$*_`" * 480,
        "Answer: " + "x=1, " * 390,
        "Answer: " + "a+" * 900 + "a = 1",
        "Answer: 34 " + "llamas " * 280,
        "Answer: " + "\\begin{a}" * 400,
        "### Answer\n" * 9_000,
        "Answer:" + "\n$" * 1_900,
        "Answer: " + "{" * 900 + "35" + "}" * 900,
        "Answer: " + "<b>" * 600,
        "Answer: 1" + " 000" * 480,
        "Answer: " + "f(" * 30 + "2" + ")" * 30 + " = 34",
    ],
)
def test_hostile_forms_are_wrong_and_quick(text: str) -> None:
    for gold in ("34", r"\sqrt{2}+x", "x^2+y^2=25"):
        start = time.process_time()
        verdict = grade(text, gold)
        assert time.process_time() - start < 1
        assert not verdict.correct
