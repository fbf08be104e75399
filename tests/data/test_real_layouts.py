"""Well-known data sets in their own shape, through the whole product with a scripted engine.

Each row is loaded, posed and answered with its own ground truth in three forms and with the
ground truth of another row. It earns +1 for its own and −1 for the other one.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from data_files import write_rows
from real_layouts import LAYOUTS, Layout
from scripted_engine import scripted_runner

from rllib_dapo.algorithm.dapo import DAPOConfig
from rllib_dapo.data.load import load_problems
from rllib_dapo.data.problem_set import ProblemSet
from rllib_dapo.rollout.engine.base import Sampling
from rllib_dapo.rollout.sampling_job import SamplingJob
from rllib_dapo.types import Group, ProblemRef

FORMS = ("So it follows.\n\nAnswer: {}", "Hence $\\boxed{{{}}}$.", "The answer is ${}$.")


def number_of(text: str) -> int:
    """The number of the row whose problem this is."""
    return int(re.findall(r"exercise (\d+)", text)[-1])


def gold_of(layout: Layout, text: str) -> str:
    """The ground truth of a problem as it is posed."""
    gold = layout.golds[number_of(text)]
    assert gold is not None
    word = gold.removeprefix("LETTER OF ")
    if word == gold:
        return gold
    (letter,) = re.findall(rf"([A-D])\W+{word}", text)
    return str(letter)


def other_gold(layout: Layout, problems: ProblemSet, text: str) -> str:
    """The ground truth of another row that differs from this one's."""
    own = gold_of(layout, text)
    others = (gold_of(layout, problem.text) for problem in problems)
    return next(gold for gold in others if gold.strip("$") != own.strip("$"))


def answered(layout: Layout, path: Path, problems: ProblemSet) -> list[Group]:
    """The scored groups of all problems: three forms of the ground truth, and another one."""

    def script(prompt: str, i: int) -> str:
        if i < len(FORMS):
            return FORMS[i].format(gold_of(layout, prompt).strip("$"))
        return FORMS[0].format(other_gold(layout, problems, prompt).strip("$"))

    env_config = {"dataset": str(path), "on_bad_row": "skip", **layout.options}
    config = (
        DAPOConfig()
        .environment("rllib_dapo/Math-v0", env_config=env_config)
        .training(group_size=len(FORMS) + 1, max_prompt_length=2000, max_completion_length=400)
    )
    runner = scripted_runner(script)(config=config, worker_index=0, num_workers=0)
    try:
        refs = tuple(ProblemRef(i, i, i) for i in range(len(problems)))
        job = SamplingJob(refs, len(FORMS) + 1, Sampling(1.0, 1.0, 400), seed=1)
        groups: list[Group] = []
        reply = runner.collect(job, seconds=60.0)
        while True:
            groups += reply.groups
            assert (reply.error, reply.broken) == (None, None)
            if not reply.unfinished:
                return sorted(groups, key=lambda group: group.ref.position)
            reply = runner.collect(None, seconds=60.0)
    finally:
        runner.stop()


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_row_is_posed_and_graded_or_named_as_bad(tmp_path: Path, name: str) -> None:
    layout = LAYOUTS[name]()
    path = write_rows(tmp_path / f"train{layout.suffix}", layout.rows)
    problems = load_problems(path, on_bad_row="skip", **layout.options)

    bad = {row.row - 1: row for row in problems.report.bad_rows}
    assert sorted(bad) == sorted(layout.reasons)
    for number, word in layout.reasons.items():
        assert word.lower() in str(bad[number]).lower()

    good = [n for n, gold in enumerate(layout.golds) if gold is not None]
    assert [number_of(problem.text) for problem in problems] == good
    for n, problem in zip(good, problems, strict=True):
        assert layout.posed(n) in problem.text

    groups = answered(layout, path, problems)
    assert [group.failure for group in groups] == [None] * len(good)
    wrong = {
        good[group.ref.index]: [(c.text, c.score) for c in group.completions]
        for group in groups
        if group.scores.tolist() != [1.0, 1.0, 1.0, -1.0]
    }
    assert wrong == {}


def test_the_options_of_gpqa_are_in_the_same_order_every_time(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "gpqa.csv", LAYOUTS["GPQA"]().rows)
    first, second = (load_problems(path) for _ in range(2))
    assert [(p.text, p.answer) for p in first] == [(p.text, p.answer) for p in second]
    assert len({problem.answer for problem in first}) == 4  # not always the same letter
