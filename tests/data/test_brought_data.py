"""Data as people bring them: half problems, placeholders, prefilled turns, forms of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from datasets import Dataset
from small_tokenizers import CHAT_TEMPLATE, make_tokenizer

from rllib_dapo.data.load import load_problems, problems_from_rows
from rllib_dapo.data.load_report import BadRowsError
from rllib_dapo.data.prompts import PromptRenderer
from rllib_dapo.data.stream import ProblemStream
from rllib_dapo.errors import DataError, SettingError

ROWS = [{"problem": f"{i}+1?", "answer": i + 1} for i in range(3)]


@pytest.mark.parametrize(
    ("row", "problem", "answer"),
    [
        (
            {"Body": "Ann has 3.", "Question": "How many?", "Answer": 3.0},
            "Ann has 3. How many?",
            "3",
        ),
        ({"body": "A.", "question": "B?", "answer": "9 (apples)"}, "A. B?", "9"),
        ({"question": "Q", "choices": ["1", "4"], "answer": 1}, "Q\nA. 1\nB. 4", "B"),
        ({"question": "Q", "choices": "['1' '4']", "answer": "a"}, "Q\nA. 1\nB. 4", "A"),
        ({"Question": "Q", "A": "1", "B": "4", "Answer": "B"}, "Q\nA. 1\nB. 4", "B"),
    ],
)
def test_known_layouts_are_joined(row: dict[str, Any], problem: str, answer: str) -> None:
    (loaded,) = problems_from_rows([row])
    assert (loaded.problem, loaded.answer) == (problem, answer)


@pytest.mark.parametrize("name", ["passage", "context", "story", "Paragraph", "problem_context"])
def test_other_parts_are_refused_with_a_template(name: str) -> None:
    row = {"question": "How many?", name: "Ann has 3 pears.", "answer": "3"}
    with pytest.raises(DataError, match=rf"row 1, column '{name}': .*problem_template"):
        problems_from_rows([row])
    template = f"{{{name}}} {{question}} \\boxed{{answer}}"
    (loaded,) = problems_from_rows([row], problem_template=template)
    assert loaded.problem == r"Ann has 3 pears. How many? \boxed{answer}"
    with pytest.raises(DataError, match=r"there is no column 'questio'.*nearest is 'question'"):
        problems_from_rows([row], problem_template="{questio}")


@pytest.mark.parametrize("gold", ["proof", "notfound", "N/A", "None", "", "not available", "???"])
def test_placeholders_are_bad_rows(gold: str, caplog: pytest.LogCaptureFixture) -> None:
    rows = [*ROWS, {"problem": "x", "answer": gold}, {"problem": "y", "answer": "the red one"}]
    with pytest.raises(BadRowsError) as caught:
        problems_from_rows(rows)
    assert [bad.row for bad in caught.value.report.bad_rows] == [4]
    problems = problems_from_rows(rows, on_bad_row="skip")
    assert (len(problems), problems.report.num_bad) == (4, 1)
    assert "1 of 4 ground truths can only be matched word for word" in caplog.text


@pytest.mark.parametrize("gold", [r"$x+$ $\dot{y}$", ", ".join(f"x_{{{i}}}" for i in range(60))])
def test_odd_golds_are_fine(gold: str) -> None:
    assert problems_from_rows([{"problem": "Q", "answer": gold}])[0].answer == gold


def test_a_prefilled_turn_is_continued() -> None:
    begun = "Let me see.\n<think>"
    chat = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": begun}]
    for value in (chat, json.dumps(chat), str(chat), str(chat).replace("}, ", "}\n ")):
        (loaded,) = problems_from_rows([{"prompt": value, "answer": "5"}])
        assert loaded.problem == chat
        assert loaded.text == "Q"
    tokenizer = make_tokenizer(CHAT_TEMPLATE)
    renderer = PromptRenderer(tokenizer)
    prompt = renderer.render(chat)
    assert prompt.text.endswith("<|assistant|>" + begun)
    assert prompt.token_ids.tolist()[-len(begun) :] == tokenizer.encode(
        begun, add_special_tokens=False
    )
    assert renderer.lengths([chat, chat[:1]]).tolist()[0] == len(prompt.token_ids)


@pytest.mark.parametrize("orient", ["columns", "records", "split", "index", "table"])
def test_every_orient_of_pandas(tmp_path: Path, orient: Any) -> None:
    pd.DataFrame(ROWS).to_json(tmp_path / "p.json", orient=orient)
    assert [p.answer for p in load_problems(tmp_path / "p.json")] == ["1", "2", "3"]


def test_files_of_the_hub(tmp_path: Path) -> None:
    Dataset.from_list(ROWS).to_json(tmp_path / "lines.json")
    assert len(load_problems(tmp_path / "lines.json")) == 3
    pd.DataFrame([{"problem": "x" * 200_000, "answer": 1}]).to_csv(tmp_path / "p.csv")
    assert len(load_problems(tmp_path / "p.csv")[0].text) == 200_000
    for name in ("main", "socratic"):
        (tmp_path / "hub" / name).mkdir(parents=True)
        pd.DataFrame(ROWS).to_parquet(tmp_path / "hub" / name / "train-0.parquet")
    (tmp_path / "hub" / "dataset_infos.json").write_text('{"main": {}}')
    with pytest.raises(DataError, match=r"several configurations \(main, socratic\)"):
        load_problems(tmp_path / "hub")
    assert len(load_problems(tmp_path / "hub" / "main")) == 3
    (tmp_path / "l.parquet").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(DataError, match="git lfs pull"):
        load_problems(tmp_path / "l.parquet")


def test_file_order_and_fingerprints() -> None:
    stream = ProblemStream(3, 7, shuffle=False)
    assert [ref.index for ref in stream.take(7)] == [0, 1, 2, 0, 1, 2, 0]
    with pytest.raises(SettingError, match="shuffle"):
        ProblemStream(3, 7).set_state(stream.get_state())
    first, other = problems_from_rows(ROWS), problems_from_rows(ROWS[::-1])
    assert first.digests().tolist() == other.digests().tolist()[::-1]
    assert len(set(first.digests().tolist())) == 3
