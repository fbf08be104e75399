"""Rows of published data sets in their own layouts, with what is to be read from them."""

from __future__ import annotations

from typing import Any

TASK = "Find $x$ if $x-40=2$."
ASKED = [{"content": f"Answer this.\n\n{TASK}", "role": "user"}]
SYSTEM = {"content": "Think first.", "role": "system"}
WORKED = "From $x-40=2$, $x=2+40=\\boxed{42}$."
ANSWERED = [*ASKED, {"content": WORKED, "role": "assistant"}]
RULE = {"ground_truth": "42", "style": "rule-lighteval/MATH_v2"}
INDEX = {"index": "9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079"}

LAYOUTS: dict[str, tuple[dict[str, Any], Any, str]] = {
    "DAPO-Math-17k": (
        {
            "data_source": "math_dapo",
            "prompt": ASKED,
            "ability": "MATH",
            "reward_model": RULE,
            "extra_info": INDEX,
        },
        ASKED,
        "42",
    ),
    "DAPO-Math-17k, processed": (
        {
            "prompt": TASK,
            "solution": "42",
            "data_source": "math_dapo",
            "source_prompt": ASKED,
            "ability": "MATH",
            "reward_model": RULE,
            "extra_info": INDEX,
        },
        TASK,
        "42",
    ),
    "AIME 2024, capitals": (
        {"ID": "2024-II-4", "Problem": TASK, "Solution": WORKED + " Done, 41 no.", "Answer": 33},
        TASK,
        "33",
    ),
    "AIME 2024, small letters": (
        {
            "id": 60,
            "problem": TASK,
            "solution": WORKED,
            "answer": "033",
            "url": "https://example.org",
            "year": "2024",
        },
        TASK,
        "033",
    ),
    "AIME 2024, answer in the solution": (
        {"id": 60, "problem": TASK, "solution": "\\boxed{42}", "url": "https://example.org"},
        TASK,
        "42",
    ),
    "AIME 2024, as the training data": (
        {"data_source": "aime", "prompt": [SYSTEM, *ASKED], "reward_model": RULE},
        [SYSTEM, *ASKED],
        "42",
    ),
    "AMC, answers as floats": ({"id": 1, "problem": TASK, "answer": 42.0}, TASK, "42"),
    "GSM8K": (
        {"question": TASK, "answer": "40+2=<<40+2=42>>42 is it.\n#### 42"},
        TASK,
        "42",
    ),
    "GSM8K, thousands": ({"question": TASK, "answer": "It is.\n#### 1,042"}, TASK, "1,042"),
    "MATH": (
        {"problem": TASK, "level": "Level 5", "type": "Algebra", "solution": WORKED},
        TASK,
        "42",
    ),
    "MATH-500": (
        {
            "problem": TASK,
            "solution": WORKED,
            "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
            "subject": "Precalculus",
            "level": 2,
            "unique_id": "test/precalculus/807.json",
        },
        TASK,
        "\\left( 3, \\frac{\\pi}{2} \\right)",
    ),
    "open-r1, answer": (
        {
            "problem": TASK,
            "solution": "A proof of many words, without a box.",
            "answer": "42",
            "problem_type": "Algebra",
            "generations": [WORKED, WORKED],
            "correctness_math_verify": [True, False],
            "messages": ANSWERED,
        },
        TASK,
        "42",
    ),
    "open-r1, solution": (
        {"source": "olympiads", "problem": TASK, "solution": WORKED, "messages": ANSWERED},
        TASK,
        "42",
    ),
    "open-r1, prompt and solution": ({"prompt": ASKED, "solution": "$42$"}, ASKED, "$42$"),
    "open-r1, messages alone": (
        {
            "messages": [*ASKED, {"content": "So \\boxed{\\frac{1}{2}}.", "role": "assistant"}],
            "num_turns": 2,
        },
        ASKED,
        "\\frac{1}{2}",
    ),
    "messages and an answer": (
        {"messages": [SYSTEM, *ASKED], "answer": 42},
        [SYSTEM, *ASKED],
        "42",
    ),
    "verl": (
        {
            "data_source": "openai/gsm8k",
            "prompt": ASKED,
            "ability": "math",
            "reward_model": {"ground_truth": "42", "style": "rule"},
            "extra_info": {"answer": "#### 7", "index": 0, "question": TASK, "split": "train"},
        },
        ASKED,
        "42",
    ),
    "verl, ground truth as a JSON list": (
        {"prompt": ASKED, "reward_model": {"ground_truth": '["42"]', "style": "rule"}},
        ASKED,
        "42",
    ),
    "verl, ground truth in a mapping": (
        {"prompt": ASKED, "reward_model": {"ground_truth": {"target": ["42"]}, "style": "rule"}},
        ASKED,
        "42",
    ),
    "verl, only extra_info": (
        {"prompt": ASKED, "extra_info": {"answer": "So.\n#### 42", "index": 3}},
        ASKED,
        "42",
    ),
    "input and target": ({"input": TASK, "target": 42}, TASK, "42"),
    "input and output": ({"input": TASK, "output": WORKED}, TASK, "42"),
    "input, output and target": ({"input": TASK, "output": "long", "target": "42"}, TASK, "42"),
    "question and final_answer": ({"question": TASK, "final_answer": "42"}, TASK, "42"),
    "problem and expected_answer": ({"problem": TASK, "expected_answer": "42"}, TASK, "42"),
}
