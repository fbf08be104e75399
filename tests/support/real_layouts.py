"""Twenty rows in the exact shape of well-known data sets: columns, nesting, gold layout, quirks.

The problems are our own. Each one names its row (`exercise 7`), so that a scripted engine knows
what it is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
NUMBERS = range(20)
VALUES = (
    "34", "-7", "\\frac{3}{8}", "0.125", "2\\sqrt{5}", "\\pi", "(3, -2)", "[2, 9)", "x^2+3x+1",
    "\\frac{\\sqrt{3}}{2}", "1,250", "12\\pi", "5^{40}", "\\dfrac{7}{11}", "(-\\infty, 4)",
    "3+4i", "90^\\circ", "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "\\{1, 6, 8\\}",
    "\\frac{x+2}{7}",
)  # fmt: skip
"""Ground truths as MATH writes them, all different in value."""


@dataclass(frozen=True)
class Layout:
    """A data set, and what is to be read from it.

    Attributes:
        suffix: the file format in which it is published.
        rows: its rows.
        golds: the ground truth of each row; None for rows that cannot be used.
        reasons: for the rows that cannot be used, a word of the reason.
        posed: a text that each posed problem contains, by the number of its row.
        options: settings of the environment that it needs.
    """

    suffix: str
    rows: list[Row]
    golds: list[str | None]
    reasons: dict[int, str] = field(default_factory=dict)
    posed: Callable[[int], str] = lambda n: f"exercise {n}"
    options: dict[str, Any] = field(default_factory=dict)


def task(n: int) -> str:
    return f"Let $a_{{1}}={n}$ in exercise {n}; find what it asks for."


def worked(gold: str) -> str:
    return f"First note that $1+1=2$. Hence the result is $\\boxed{{{gold}}}$."


def _integers() -> list[str]:
    return [str(17 * n + 3) for n in NUMBERS]


def dapo() -> Layout:
    golds: list[str | None] = [*_integers()]
    rows = [
        {
            "data_source": "math_dapo",
            "prompt": [
                {
                    "content": f"Solve it. Close with Answer: $Answer.\n\n{task(n)}\n\nBegin.",
                    "role": "user",
                }
            ],
            "ability": "MATH",
            "reward_model": {"ground_truth": golds[n], "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": f"00000000-0000-4000-8000-{n:012d}"},
        }
        for n in NUMBERS
    ]
    return Layout(".parquet", rows, golds)


def gsm8k() -> Layout:
    golds = [f"{n * 700 + 5:,}" for n in NUMBERS]
    rows = [
        {
            "question": f"A farm of exercise {n} has {n} pens with 700 hens each, and 5 more hens."
            " How many hens are there?",
            "answer": f"The pens hold {n}*700=<<{n}*700={n * 700}>>{n * 700} hens.\nWith the others"
            f" that makes {n * 700}+5=<<{n * 700}+5={n * 700 + 5}>>{n * 700 + 5}.\n#### {golds[n]}",
        }
        for n in NUMBERS
    ]
    return Layout(".jsonl", rows, [*golds])


def math() -> Layout:
    rows = [
        {
            "problem": task(n),
            "level": f"Level {n % 5 + 1}",
            "type": "Algebra",
            "solution": f"A first try gives $\\boxed{{0}}$, which fails. {worked(VALUES[n])}",
        }
        for n in NUMBERS
    ]
    rows[0]["solution"] = "Adding both lines gives $\\boxed 2$."
    rows[1]["solution"] = "So the value is $\\fbox{-7}$."
    rows[2]["solution"] = "So the value is $\\boxed{\\frac{3}\n{8}}$."
    return Layout(".jsonl", rows, ["2", *VALUES[1:]])


def math_500() -> Layout:
    rows = [
        {
            "problem": task(n),
            "solution": worked(VALUES[n]),
            "answer": VALUES[n],
            "subject": "Algebra",
            "level": n % 5 + 1,
            "unique_id": f"test/algebra/{n}.json",
        }
        for n in NUMBERS
    ]
    return Layout(".jsonl", rows, [*VALUES])


def aime_2024() -> Layout:
    rows = [
        {"ID": f"2024-I-{n}", "Problem": task(n), "Solution": worked(str(9 * n)), "Answer": 9 * n}
        for n in NUMBERS
    ]
    return Layout(".parquet", rows, [str(9 * n) for n in NUMBERS])


def aime_2024_small_letters() -> Layout:
    golds = [f"{9 * n:03d}" for n in NUMBERS]
    rows = [
        {
            "id": n,
            "problem": task(n),
            "solution": worked(str(9 * n)),
            "answer": golds[n],
            "url": f"https://example.org/{n}",
            "year": "2024",
        }
        for n in NUMBERS
    ]
    return Layout(".parquet", rows, [*golds])


def aime_2025() -> Layout:
    rows = [{"question": task(n), "answer": str(9 * n)} for n in NUMBERS]
    rows[3]["answer"] = "27^\\circ"
    return Layout(".jsonl", rows, ["27^\\circ" if n == 3 else str(9 * n) for n in NUMBERS])


def olympiad_bench() -> Layout:
    golds: list[str | None] = [f"${value}$" for value in VALUES]
    rows: list[Row] = [
        {
            "id": 1600 + n,
            "question": task(n),
            "solution": [worked(VALUES[n])],
            "final_answer": [golds[n]],
            "context": None,
            "image_1": None,
            "modality": "Text-only",
            "difficulty": "Competition",
            "is_multiple_answer": False,
            "unit": None,
            "answer_type": "Numerical",
            "error": None,
            "question_type": "Open-ended",
            "subfield": "Algebra",
            "subject": "Math",
            "language": "English",
        }
        for n in NUMBERS
    ]
    rows[5].update(final_answer=["$3,11$"], is_multiple_answer=True)
    rows[6].update(final_answer=["$31$"], unit="cm")
    rows[7].update(final_answer=None, answer_type=None, question_type="Theorem proof")
    rows[8].update(image_1={"bytes": b"\x89PNG", "path": "1.png"}, modality="Multimodal")
    golds[5:9] = ["$3,11$", "$31$", None, None]
    return Layout(".parquet", rows, golds, {7: "final_answer", 8: "image"})


def svamp() -> Layout:
    rows = [
        {
            "ID": f"chal-{n}",
            "Body": f"In exercise {n} there were {n + 9} plums on the tree. Then {n} fell off",
            "Question": "How many plums are left on the tree?",
            "Equation": f"( {n + 9}.0 - {n}.0 )",
            "Answer": f"{9 + n}.0",
            "Type": "Subtraction",
        }
        for n in NUMBERS
    ]
    return Layout(".json", rows, [f"{9 + n}.0" for n in NUMBERS], posed=_both_halves)


def _both_halves(n: int) -> str:
    return f"exercise {n} there were {n + 9} plums on the tree"


def asdiv() -> Layout:
    rows = [
        {
            "body": f"In exercise {n} Ann has {n} apples and finds 40 more.",
            "question": "How many apples does she have now?",
            "solution_type": "Addition",
            "answer": f"{n + 40} (apples)",
            "formula": f"{n}+40={n + 40}",
        }
        for n in NUMBERS
    ]
    return Layout(
        ".parquet", rows, [str(n + 40) for n in NUMBERS], posed=lambda n: f"Ann has {n} apples"
    )


def mmlu() -> Layout:
    rows = [
        {
            "question": f"Which number does exercise {n} ask for?",
            "subject": "elementary_mathematics",
            "choices": [f"{n}", f"{n + 50}", f"{n + 100}", f"{n + 150}"],
            "answer": n % 4,
        }
        for n in NUMBERS
    ]
    return Layout(".parquet", rows, ["ABCD"[n % 4] for n in NUMBERS], posed=lambda n: f"{n + 150}")


def gpqa() -> Layout:
    rows = [
        {
            "Question": f"Which particle does exercise {n} describe?",
            "Correct Answer": f"kaon {n}\n",
            "Incorrect Answer 1": f"muon {n}",
            "Incorrect Answer 2": f"pion {n}",
            "Incorrect Answer 3": f"tauon {n}",
            "Explanation": "It has strangeness.",
            "Subdomain": "Physics",
        }
        for n in NUMBERS
    ]
    # The letter follows from the posed text: the one that stands before the kaon.
    return Layout(".csv", rows, ["LETTER OF kaon"] * 20, posed=lambda n: f"kaon {n}")


def numina_cot() -> Layout:
    rows = [
        {
            "source": "synthetic_math",
            "problem": task(n),
            "solution": worked(VALUES[n]),
            "messages": [
                {"content": task(n), "role": "user"},
                {"content": worked(VALUES[n]), "role": "assistant"},
            ],
        }
        for n in NUMBERS
    ]
    golds: list[str | None] = [*VALUES]
    rows[4]["solution"] = (
        "By induction every member of the sequence is even, which was to be shown."
    )
    golds[4] = None
    return Layout(".parquet", rows, golds, {4: "boxed"})


def numina_1_5() -> Layout:
    golds: list[str | None] = [*VALUES]
    rows = [
        {
            "problem": task(n),
            "solution": worked(VALUES[n]),
            "answer": VALUES[n],
            "problem_type": "Algebra",
            "question_type": "math-word-problem",
            "source": "olympiads",
            "synthetic": False,
            "problem_is_valid": "Yes",
            "solution_is_valid": "Yes",
        }
        for n in NUMBERS
    ]
    rows[2]["answer"], rows[9]["answer"] = "proof", "notfound"
    golds[2] = golds[9] = None
    return Layout(".parquet", rows, golds, {2: "proof", 9: "notfound"})


def deep_math() -> Layout:
    rows = [
        {
            "question": task(n),
            "final_answer": VALUES[n],
            "difficulty": 5.5,
            "topic": "Mathematics -> Algebra",
            **{f"r1_solution_{i}": f"Okay.\n</think>\n\n{worked(VALUES[n])}" for i in (1, 2, 3)},
        }
        for n in NUMBERS
    ]
    return Layout(".parquet", rows, [*VALUES])


def open_math_reasoning() -> Layout:
    rows = [
        {
            "expected_answer": VALUES[n],
            "problem_type": "has_answer_extracted",
            "problem_source": "aops_c4_high_school_math",
            "generation_model": "a-model",
            "pass_rate_72b_tir": "0.96875" if n % 3 else "n/a",
            "problem": task(n),
            "generated_solution": f"<think>Well.</think>{worked(VALUES[n])}",
            "inference_mode": "cot",
        }
        for n in NUMBERS
    ]
    return Layout(".parquet", rows, [*VALUES])


def easy_r1() -> Layout:
    golds: list[str | None] = [*VALUES]
    rows: list[Row] = [{"problem": task(n), "answer": VALUES[n], "images": []} for n in NUMBERS]
    rows[6] = {
        "problem": f"<image>{task(6)}",
        "answer": "34",
        "images": [{"bytes": b"\x89PNG", "path": None}],
    }
    golds[6] = None
    return Layout(".parquet", rows, golds, {6: "image"})


LAYOUTS: dict[str, Callable[[], Layout]] = {
    "DAPO-Math-17k": dapo,
    "GSM8K": gsm8k,
    "MATH": math,
    "MATH-500": math_500,
    "AIME 2024": aime_2024,
    "AIME 2024, small letters": aime_2024_small_letters,
    "AIME 2025": aime_2025,
    "OlympiadBench": olympiad_bench,
    "SVAMP": svamp,
    "ASDiv": asdiv,
    "MMLU": mmlu,
    "GPQA": gpqa,
    "NuminaMath-CoT": numina_cot,
    "NuminaMath-1.5": numina_1_5,
    "DeepMath": deep_math,
    "OpenMathReasoning": open_math_reasoning,
    "EasyR1": easy_r1,
}
