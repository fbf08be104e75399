"""Answers turned into integers by a language model: a scripted one, for the control flow."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from rllib_dapo.cli.transform import by_model
from rllib_dapo.cli.transform.by_model import ModelOptions, read_steps, transform_by_model
from rllib_dapo.cli.transform.dataset import transform_dataset
from rllib_dapo.cli.transform.model_prompts import check_prompt, transformation_prompt
from rllib_dapo.cli.transform.question import RefusalError, Transformed
from rllib_dapo.cli.transform.source_rows import Source
from rllib_dapo.cli.transform.text_engine import EngineTexts
from rllib_dapo.data.prompts import PromptRenderer
from rllib_dapo.errors import SettingError
from rllib_dapo.model.facts import load_tokenizer, model_path
from rllib_dapo.rollout.engine.base import FinishedRequest, SampledCompletion, Sampling

STEPS = """Some words first.
## Form
A logarithm $\\log_a b$.
## Added question
The answer is in the form $\\log_2 n$,
where $n$ is odd. Please find $n$.
## Computation
$n=3$.
## Integer
3
"""
QUESTION = r"The answer is in the form $\log_2 n$, where $n$ is odd. Please find $n$."
PAIR = ("Solve $2^x=3$.", r"\log_2 3")


class Scripted:
    """A `TextEngine` that says what it is told and remembers what it was asked."""

    def __init__(self, *answers: Callable[[str], list[str]] | list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[list[str], int, Sampling]] = []

    def generate(self, prompts: Sequence[str], n: int, sampling: Sampling) -> list[list[str]]:
        self.asked.append((list(prompts), n, sampling))
        answer = self.answers.pop(0)
        return [answer(p) if callable(answer) else answer for p in prompts]


def test_the_four_steps_and_the_check() -> None:
    engine = Scripted([STEPS, "nonsense"], ["Answer: 3", "Answer: 4", "so\nAnswer: $3$", ""])
    options = ModelOptions(temperature=0.5, top_p=0.9, max_tokens=77)
    [found] = transform_by_model(engine, [PAIR], options)
    assert found == Transformed("model", QUESTION, 3)
    (first, n, sampling), (second, m, _) = engine.asked
    assert first == [transformation_prompt(*PAIR)]
    assert (n, m, sampling) == (2, 4, Sampling(0.5, 0.9, 77))
    assert second == [check_prompt(f"{PAIR[0]} {QUESTION}")]
    assert PAIR[1] not in second[0]  # the check has not seen the answer


@pytest.mark.parametrize(("right", "accepted"), [(1, False), (2, True), (4, True)])
def test_enough_solutions_must_agree(right: int, accepted: bool) -> None:
    solutions = ["Answer: 3"] * right + ["Answer: 5"] * (4 - right)
    [found] = transform_by_model(Scripted([STEPS], solutions), [PAIR], ModelOptions())
    assert isinstance(found, Transformed) == accepted
    if isinstance(found, RefusalError):
        assert found.reason == by_model.DISAGREED
        assert "1 of 4 solutions give 3, 2 are needed" in found.detail
        assert QUESTION in found.detail


def test_the_check_can_be_left_out_and_a_later_sample_used() -> None:
    engine = Scripted(["nonsense", STEPS])
    [found] = transform_by_model(engine, [PAIR], ModelOptions(check_samples=0))
    assert found == Transformed("model", QUESTION, 3)
    assert len(engine.asked) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("## Form\nREFUSE", by_model.REFUSED),
        ("", by_model.MALFORMED),
        (STEPS.replace("## Computation", "## Sum"), by_model.MALFORMED),
        (STEPS.replace("\n3\n", "\n"), by_model.MALFORMED),
        (STEPS.replace("\n3\n", "\n3/2\n"), by_model.NOT_AN_INTEGER),
        (STEPS.replace("\n3\n", "\n3 or 4\n"), by_model.NOT_AN_INTEGER),
        (STEPS.replace("\n3\n", "\n2+1\n"), by_model.NOT_AN_INTEGER),
        (STEPS.replace("\n3\n", "\n3 cm\n"), by_model.NOT_AN_INTEGER),
        (STEPS.replace("\n3\n", "\n__import__('os')\n"), by_model.NOT_AN_INTEGER),
        (STEPS.replace("odd", r"3 in $\log_23$"), by_model.LEAKED),
        (STEPS.replace("odd", "123").replace("\n3\n", "\n123\n"), by_model.LEAKED),
        (STEPS.replace("odd", "o" * 2000), by_model.MALFORMED),
    ],
)
def test_output_that_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RefusalError) as caught:
        read_steps(text, PAIR[1])
    assert caught.value.reason == reason


def test_output_of_a_reasoning_model() -> None:
    thoughts = f"<think>{STEPS.replace('3', '9')}</think>{STEPS}"
    assert read_steps(thoughts, PAIR[1]).answer == 3
    assert read_steps(STEPS.replace("\n3\n", "\n$\\boxed{-3}$\n"), PAIR[1]).answer == -3


def test_a_problem_too_long_is_refused() -> None:
    [found] = transform_by_model(Scripted([]), [PAIR], ModelOptions())
    assert isinstance(found, RefusalError)
    assert found.reason == by_model.NO_OUTPUT


@pytest.mark.parametrize(
    "options",
    [
        {"samples": 0},
        {"check_samples": -1},
        {"check_agreement": 0},
        {"check_agreement": 5},
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"max_tokens": 0},
    ],
)
def test_impossible_options(options: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=next(iter(options))):
        ModelOptions(**options)  # type: ignore[arg-type]


def test_only_what_no_rule_knows_is_asked(tmp_path: Path) -> None:
    answers = ["7", r"\frac{1}{2}", r"\log_2 3", r"\text{Yes}", None]
    rows = [{"problem": f"Problem {i}.", "answer": a} for i, a in enumerate(answers)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def steps(prompt: str) -> list[str]:
        return [STEPS] if "Problem 2." in prompt else ["## Form\nREFUSE"]

    engine = Scripted(steps, ["Answer: 3", "Answer: 3"])
    outcome = transform_dataset(
        Source(str(tmp_path / "in.jsonl")),
        tmp_path / "out.jsonl",
        model="m",
        engine=lambda: engine,
    )
    assert [len(prompts) for prompts, _, _ in engine.asked] == [2, 1]
    assert outcome.counts == {
        "kept/integer": 1,
        "rule/fraction": 1,
        "model/model": 1,
        f"rejected/{by_model.REFUSED}": 1,
        "rejected/unreadable row": 1,
    }
    last = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[-1])
    assert last["method"] == "model"
    assert last["problem"] == "Problem 2. " + QUESTION
    assert last["original_answer"] == r"\log_2 3"

    def never() -> Scripted:
        raise AssertionError("a finished run needs no engine")

    transform_dataset(
        Source(str(tmp_path / "in.jsonl")), tmp_path / "out.jsonl", model="m", engine=never
    )


class OneTokenAtATime:
    """An inference engine that answers each prompt with its last token but one, n times."""

    def __init__(self) -> None:
        self.queue: list[tuple[str, Sequence[int], int]] = []

    def submit(
        self, request_id: str, prompt: Sequence[int], n: int, sampling: Sampling, *, seed: int
    ) -> None:
        self.queue.append((request_id, prompt, n))

    @property
    def num_in_flight(self) -> int:
        return len(self.queue)

    def step(self) -> list[FinishedRequest]:
        request_id, prompt, n = self.queue.pop()  # the last one first
        answer = SampledCompletion(np.array(prompt[-2:-1]), np.zeros(1, np.float32), "stop")
        return [FinishedRequest(request_id, (answer,) * n)]


def test_texts_go_to_an_engine_and_come_back_in_order() -> None:
    tokenizer = load_tokenizer(model_path("embedded"), trust_remote_code=False)
    renderer = PromptRenderer(tokenizer, template="plain", chat="never")
    engine = OneTokenAtATime()
    texts = EngineTexts(engine, renderer, tokenizer, max_length=12)  # type: ignore[arg-type]
    found = texts.generate(["1+2", "1+1+1+1+1+1+1", "7+8"], 2, Sampling(1.0, 1.0, 4))
    assert found == [["2", "2"], [], ["8", "8"]]
