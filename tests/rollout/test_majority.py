"""cons@k: one vote for each completion, by the value of its answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, make_group

from rllib_dapo.rollout.majority import majority_is_correct
from rllib_dapo.rollout.metrics import evaluation_metrics
from rllib_dapo.types import Group, ProblemRef

# Values of wrong answers, each written in several ways. None: nothing was found.
WAYS = {
    "half": ["1/2", "0.5", r"\\frac{1}{2}".replace("\\\\", "\\"), r"\dfrac12"],
    "thousand": ["1000", "1,000", "$1000$"],
    "text": [r"x + 1", r"x+1"],
    "right": ["7"],
    None: [None],
}


def group_of(*answers: tuple[bool, str | None], **info: Any) -> Group:
    """A group of completions with these verdicts and answers."""
    group = make_group(0, [1.0 if correct else -1.0 for correct, _ in answers])
    completions = [
        replace(c, info={"extracted": answer} | info)
        for c, (_, answer) in zip(group.completions, answers, strict=True)
    ]
    return replace(group, completions=tuple(completions))


def brute_force(values: list[str | None]) -> bool:
    """The value with the most votes, the first one of equals; "no answer" has none."""
    best, most = None, 0
    for value in values:
        votes = sum(other == value for other in values)
        if value is not None and votes > most:
            best, most = value, votes
    return best == "right"


@examples(200)
@given(st.lists(st.sampled_from(list(WAYS)), max_size=9), st.randoms(use_true_random=False))
def test_the_vote_is_that_of_counting_by_value(values, random):
    answers = [(value == "right", random.choice(WAYS[value])) for value in values]
    assert majority_is_correct(group_of(*answers)) == brute_force(values)


@pytest.mark.parametrize(
    ("answers", "correct"),
    [
        ([(False, None), (False, None), (True, "7")], True),  # "no answer" never wins
        ([(False, None), (False, None)], False),
        ([(True, "7"), (False, "8")], True),  # a tie: the first one
        ([(False, "8"), (True, "7")], False),
        ([(False, "0.5"), (True, "7"), (False, "1/2"), (True, "7.0"), (False, "50/100")], False),
        ([(False, ""), (False, "  "), (True, "7")], True),
        ([(False, "9" * 5000), (True, "7"), (True, "7")], True),  # hostile: not even read
        ([(False, "1/0"), (False, "1/0"), (True, "7")], False),
        ([], False),
    ],
)
def test_examples_of_votes(answers, correct):
    assert majority_is_correct(group_of(*answers)) is correct


def test_a_completion_whose_verdict_says_no_answer_has_no_vote():
    none = [(False, "I do not know")] * 3
    group = group_of(*none, matched_by="no_answer")
    both = replace(group, completions=group.completions + group_of((True, "7")).completions)
    assert majority_is_correct(both)


def test_without_an_extracted_answer_the_whole_completion_votes():
    group = make_group(0, [-1.0, -1.0, 1.0])  # texts "3", no info
    assert not majority_is_correct(group)


# -- Failed problems ------------------------------------------------------------------------


def failed(position: int, reason: str = "ValueError: broken") -> Group:
    return make_group(position, [], failure=reason)


def test_problems_that_failed_count_as_wrong_and_are_counted():
    """Two of four could not be scored: accuracy is no more than one half."""
    groups = [
        make_group(0, [1.0, 1.0]),
        make_group(1, [1.0, 1.0]),
        failed(2),
        failed(3, "PromptTooLong: the prompt has 99 tokens"),
    ]
    values = evaluation_metrics(groups)
    assert values["accuracy"] == values["pass_at_k"] == values["majority_at_k"] == 0.5
    assert (values["num_problems"], values["problems_failed"], values["k"]) == (4, 2, 2)
    assert values["problems_too_long"] == 1
    nothing = evaluation_metrics([failed(0), failed(1)])
    assert nothing["accuracy"] == nothing["pass_at_k"] == nothing["majority_at_k"] == 0.0
    assert nothing["problems_failed"] == nothing["num_problems"] == 2


@examples(100)
@given(st.lists(st.one_of(st.none(), st.lists(st.booleans(), min_size=3, max_size=3)), min_size=1))
def test_the_numbers_are_those_of_wrong_completions_in_the_place_of_failed_problems(verdicts):
    def groups(instead: list[bool] | None) -> list[Group]:
        return [
            failed(i) if found is None else make_group(i, [1.0 if c else -1.0 for c in found])
            for i, found in enumerate(v or instead for v in verdicts)
        ]

    got, expected = evaluation_metrics(groups(None)), evaluation_metrics(groups([False] * 3))
    if any(verdicts):
        for key in ("accuracy", "pass_at_k", "majority_at_k", "num_problems", "k"):
            assert got[key] == expected[key], key


def test_a_failed_problem_counts_for_its_source():
    def source(ref: ProblemRef) -> str:
        return "hard" if ref.position else "easy"

    easy = make_group(0, [1.0, -1.0])
    named = [replace(c, info={"dataset": "easy"}) for c in easy.completions]
    groups = [replace(easy, completions=tuple(named)), failed(1)]
    values = evaluation_metrics(groups, source_name=source)
    assert values["dataset_accuracy/easy"] == 0.5
    assert values["dataset_accuracy/hard"] == 0.0
