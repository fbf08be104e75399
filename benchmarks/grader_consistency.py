r"""Reports how the robust grader treats the ground truths of whole data files.

    python benchmarks/grader_consistency.py FILE...
    python benchmarks/grader_consistency.py --problem-key question --answer-key answer FILE

For each file it prints

    self      the share of ground truths that accept themselves in each of three forms, which are
              `Answer: …`, a box and `The answer is ….`, and some that do not
    cross     how many of many random pairs of different texts are accepted, with examples; they
              should be one value, such as 0.5 and 1/2
    copied    the share of problems of which some formula, copied as the answer, is accepted
"""

from __future__ import annotations

import argparse
import random
import re

from rllib_dapo.data.load import load_problems
from rllib_dapo.data.problem_set import Problem
from rllib_dapo.rewards.grading.grade import grade_all

FORMS = ("Answer: {}", r"So it is $\boxed{{{}}}$.", "The answer is {}.")
EXAMPLES = 8
_FORMULA = re.compile(r"(?<!\\)\$+([^$]{2,200})\$+|\\\(([^\n]{2,200}?)\\\)|\\\[([^\n]{2,200}?)\\\]")


def report_self(problems: list[Problem]) -> None:
    """Print how many ground truths accept themselves in each form."""
    golds = [problem.answer for problem in problems]
    for form in FORMS:
        verdicts = grade_all([form.format(gold) for gold in golds], golds)
        wrong = sorted({g for g, v in zip(golds, verdicts, strict=True) if not v.correct})
        right = sum(v.correct for v in verdicts)
        print(f"  self   {right:,} of {len(golds):,} ({right / len(golds):.2%}) in {form!r}")
        for gold in wrong[:EXAMPLES]:
            print(f"           {gold!r:.90}")


def report_cross(problems: list[Problem], pairs: int, seed: int) -> None:
    """Print how many ground truths accept another one, written as an answer."""
    golds, draw = sorted({problem.answer for problem in problems}), random.Random(seed)
    if len(golds) < 2:
        return
    drawn = {tuple(draw.sample(golds, 2)) for _ in range(pairs)}
    drawn |= {(golds[k], golds[k + 1]) for k in range(len(golds) - 1)}  # neighbours look alike
    answers, truths = zip(*sorted(drawn), strict=True)
    verdicts = grade_all([f"Answer: {answer}" for answer in answers], truths)
    found = [(a, g) for a, g, v in zip(answers, truths, verdicts, strict=True) if v.correct]
    print(f"  cross  {len(found):,} of {len(drawn):,} pairs of different texts are accepted")
    for answer, gold in found[:EXAMPLES]:
        print(f"           {answer!r:.60} for {gold!r:.60}")


def report_copied(problems: list[Problem]) -> None:
    """Print in how many problems a formula of the problem is accepted as the answer."""
    copies = [
        (number, formula, problem.answer)
        for number, problem in enumerate(problems)
        for formula in {next(filter(None, m.groups())) for m in _FORMULA.finditer(problem.text)}
    ]
    verdicts = grade_all([f"Answer: {c}" for _, c, _ in copies], [gold for *_, gold in copies])
    found = [copy for copy, verdict in zip(copies, verdicts, strict=True) if verdict.correct]
    rows = len({number for number, *_ in found})
    print(f"  copied {rows:,} of {len(problems):,} ({rows / len(problems):.2%})")
    for _, formula, gold in found[:EXAMPLES]:
        print(f"           {formula!r:.60} for {gold!r:.60}")


def main() -> None:
    """Report on all files."""
    parser = argparse.ArgumentParser(description="Self-consistency of ground truths.")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--problem-key")
    parser.add_argument("--answer-key")
    parser.add_argument("--limit", type=int, help="the number of rows read of each file")
    parser.add_argument("--pairs", type=int, default=20_000, help="random pairs of ground truths")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    keys = {"problem_key": options.problem_key, "answer_key": options.answer_key}
    for file in options.files:
        problems = list(load_problems(file, **keys, limit=options.limit))
        print(f"{file}: {len(problems):,} problems")
        report_self(problems)
        report_cross(problems, options.pairs, options.seed)
        report_copied(problems)


if __name__ == "__main__":
    main()
