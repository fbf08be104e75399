"""Loading data sets: every schema and format, and an error that helps for every bad row."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from data_files import write_rows

from rllib_dapo.data.load import load_problems, problems_from_rows
from rllib_dapo.errors import DataError, SettingError

CHAT = [{"role": "user", "content": "Solve it.\n\nWhat is 2+3?"}]
GSM8K = {
    "question": "Ann has 3 bags of 4 pears and eats 2. How many are left?",
    "answer": "She has 3*4=<<3*4=12>>12 pears.\nShe keeps 12-2=<<12-2=10>>10.\n#### 1,010",
}
DAPO = {
    "data_source": "math_dapo",
    "prompt": CHAT,
    "reward_model": {"ground_truth": "5", "style": "rule-lighteval/MATH_v2"},
}
MATH = {"problem": "Halve 1.", "level": "1", "solution": r"It is $\boxed{\frac{1}{2}}$, done."}


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_every_format(tmp_path: Path, suffix: str) -> None:
    rows = [{"problem": f"{i}+1, \\frac{{1}}{{2}}\nä", "answer": i + 1} for i in range(1, 4)]
    problems = load_problems(write_rows(tmp_path / ("p" + suffix), rows))
    assert len(problems) == 3
    assert [p.problem for p in problems] == [row["problem"] for row in rows]
    assert [p.answer for p in problems] == ["2", "3", "4"]
    assert problems[2].source == f"p{suffix}:3"
    assert [p.answer for p in problems[1:]] == ["3", "4"]


@pytest.mark.parametrize(
    ("row", "problem", "answer"),
    [
        ({"problem": "2+3", "answer": "5"}, "2+3", "5"),
        ({"Problem": "2+3", "Answer": 5, "Solution": "long"}, "2+3", "5"),
        ({"problem": "2+3", "solution": "no box here, really", "answer": "5"}, "2+3", "5"),
        (GSM8K, GSM8K["question"], "1,010"),
        (DAPO, CHAT, "5"),
        (MATH, "Halve 1.", r"\frac{1}{2}"),
        ({"prompt": "2+3", "solution": "5"}, "2+3", "5"),
        ({"prompt": CHAT, "ground_truth": "5"}, CHAT, "5"),
        ({"question": "2+3", "final_answer": "5"}, "2+3", "5"),
    ],
)
def test_known_schemas(tmp_path: Path, row: dict[str, Any], problem: object, answer: str) -> None:
    for suffix in (".jsonl", ".parquet"):
        loaded = load_problems(write_rows(tmp_path / ("p" + suffix), [row]))[0]
        assert (loaded.problem, loaded.answer) == (problem, answer)
        assert isinstance(loaded.text, str)


@pytest.mark.parametrize(
    ("problem", "answer"),
    [
        (np.array(CHAT, dtype=object), np.int64(5)),
        (json.dumps(CHAT), json.dumps({"ground_truth": "5"})),
        (CHAT[0], {"ground_truth": 5}),
        ([{"role": "user", "content": [{"type": "text", "text": CHAT[0]["content"]}]}], ["5"]),
        (CHAT, 5.0),
        (CHAT, np.float32(5)),
        (CHAT, '["5"]'),
        (CHAT, np.array(["5"])),
    ],
)
def test_values_as_parquet_and_pandas_hand_them_over(problem: Any, answer: Any) -> None:
    row = {"prompt": problem, "answer": answer}
    (loaded,) = problems_from_rows([row])
    assert loaded.problem == CHAT
    assert loaded.answer == "5"


def test_data_frames_and_json_texts(tmp_path: Path) -> None:
    frame = pd.read_parquet(write_rows(tmp_path / "p.parquet", [DAPO, DAPO]))
    assert problems_from_rows(frame.to_dict("records"))[1].problem == CHAT
    row = {"prompt": json.dumps(CHAT), "reward_model": json.dumps(DAPO["reward_model"])}
    assert load_problems(write_rows(tmp_path / "p.csv", [row]))[0].answer == "5"


def test_keys_chosen_by_hand(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "p.jsonl", [{"q": "2+3", "meta": {"a": {"final": 5}}, "answer": "6"}]
    )
    problems = load_problems(path, problem_key="q", answer_key="meta.a.final")
    assert (problems[0].problem, problems[0].answer) == ("2+3", "5")


def test_latex_that_looks_like_json_stays_latex() -> None:
    row = {"problem": "[0,1] or {1}?", "answer": r"\{1,2\}"}
    assert problems_from_rows([row])[0].problem == "[0,1] or {1}?"
    assert problems_from_rows([{"problem": "?", "answer": "[0, 1]"}])[0].answer == "[0, 1]"


GOOD = {"problem": "1+1", "answer": "2"}


@pytest.mark.parametrize(
    ("row", "fragments"),
    [
        ({"problem": " ", "answer": "2"}, ["'problem'", "empty problem"]),
        ({"problem": None, "answer": "2"}, ["'problem'", "found nothing"]),
        ({"problem": 3, "answer": "2"}, ["'problem'", "found 3 (int)"]),
        ({"problem": "1", "answer": ""}, ["'answer'", "empty ground truth"]),
        ({"problem": "1", "answer": None}, ["'answer'", "found nothing"]),
        ({"problem": "1", "answer": "$$"}, ["'answer'", "holds no answer"]),
        ({"problem": "1", "answer": True}, ["'answer'", "True"]),
        ({"problem": "1", "answer": float("nan")}, ["'answer'", "found nothing"]),
        ({"problem": "1", "answer": "x " * 300}, ["'answer'", "worked solution"]),
        ({"problem": "1", "answer": ["2", "3"]}, ["'answer'", "2 ground truths"]),
        ({"problem": "1", "answer": {"x": 1}}, ["'answer'", "'x'", "ground_truth"]),
        ({"problem": "1", "answer": "so\n####"}, ["'answer'", "empty"]),
        ({"problem": "1", "anwser": "2"}, ["'answer'", "nearest is 'anwser'"]),
        ({"problem": [{"role": "bot", "content": ""}], "answer": "1"}, ["'problem'", "'bot'"]),
        ({"problem": [{"role": "system", "content": "x"}], "answer": "1"}, ["user message"]),
        ({"problem": "\ud800", "answer": "2"}, ["'problem'", "surrogate"]),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: dict[str, Any], fragments: list[str]) -> None:
    path = write_rows(tmp_path / "p.jsonl", [GOOD, GOOD, row])
    with pytest.raises(DataError) as caught:
        load_problems(path)
    for fragment in [f"{path}, row 3", *fragments]:
        assert fragment in str(caught.value)


def test_a_solution_without_a_box_is_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "p.jsonl", [{"problem": "1", "solution": "It is surely two."}])
    with pytest.raises(DataError, match=r"row 1, column 'solution': found no \\boxed"):
        load_problems(path)


def test_missing_columns_list_those_present(tmp_path: Path) -> None:
    for suffix in (".jsonl", ".json", ".csv", ".parquet"):
        path = write_rows(tmp_path / ("p" + suffix), [{"problm": "1", "answer": "2"}])
        with pytest.raises(DataError, match=r"'problm', 'answer'; the nearest is 'problm'"):
            load_problems(path)
        with pytest.raises(DataError, match=r"no column 'x' \(from problem_key\)"):
            load_problems(path, problem_key="x")


def test_malformed_json_names_the_row(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    lines = [json.dumps(GOOD)] * 9
    lines[2] = ""  # blank lines count
    lines[6] = '{"problem": "1" "answer": 2}'
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"p\.jsonl, row 7: not valid JSON .*character 17"):
        load_problems(path)
    for content in ("[1, 2", "[" * 100_000, '{"a": 1}', '"text"', '{"a": [], "b": []}', "[3]"):
        (tmp_path / "p.json").write_text(content)
        with pytest.raises(DataError, match=r"p\.json"):
            load_problems(tmp_path / "p.json")


def test_rows_that_are_no_objects(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(GOOD) + "\n[1]\n")
    with pytest.raises(DataError, match=r"row 2: found \[1\] \(list\)"):
        load_problems(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_not_utf8_names_the_row(tmp_path: Path, suffix: str) -> None:
    path = write_rows(tmp_path / ("p" + suffix), [GOOD, {"problem": "#", "answer": "2"}])
    path.write_bytes(path.read_bytes().replace(b"#", b"\xe4"))
    with pytest.raises(DataError, match=r"row 2: not UTF-8 \(byte 0xe4"):
        load_problems(path)


def test_a_byte_order_mark_is_no_part_of_a_column(tmp_path: Path) -> None:
    for suffix in (".jsonl", ".json", ".csv"):
        path = write_rows(tmp_path / ("p" + suffix), [GOOD])
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        assert load_problems(path)[0].problem == "1+1"


def test_malformed_csv_and_parquet(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("problem,answer\n1+1,2\n1,2,3\n")
    with pytest.raises(DataError, match="row 2: found 3 cells under 2 columns"):
        load_problems(path)
    path.write_text('problem,answer\n"1+1,2\n')
    with pytest.raises(DataError, match=r"p\.csv, row 1: malformed CSV"):
        load_problems(path)
    (tmp_path / "p.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match="not a readable parquet file"):
        load_problems(tmp_path / "p.parquet")


def test_missing_files_suggest_their_neighbours(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl", [GOOD])
    with pytest.raises(DataError, match=r"nearest there: train\.jsonl"):
        load_problems(tmp_path / "trian.jsonl")
    with pytest.raises(DataError, match=r"looked in .*, nearest there: train\.jsonl"):
        load_problems(tmp_path / "no" / "such" / "x.jsonl")
    with pytest.raises(DataError, match="relative to"):
        load_problems("no_such_folder/x.jsonl")
    (tmp_path / "p.txt").write_text("x")
    with pytest.raises(DataError, match=r"cannot read '\.txt'"):
        load_problems(tmp_path / "p.txt")


def test_empty_data_sets(tmp_path: Path) -> None:
    for name in ("p.jsonl", "p.csv"):
        (tmp_path / name).write_text("")
        with pytest.raises(DataError, match="the data set is empty"):
            load_problems(tmp_path / name)
    (tmp_path / "p.json").write_text("[]")
    with pytest.raises(DataError, match="the data set is empty"):
        load_problems(tmp_path / "p.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no \.jsonl, .* file"):
        load_problems(tmp_path / "empty")


def test_folders_and_splits(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data" / "train-00000-of-00002.jsonl", [GOOD])
    write_rows(tmp_path / "data" / "train-00001-of-00002.jsonl", [{"problem": "2+2", "answer": 4}])
    (tmp_path / "README.md").write_text("x")
    assert [p.answer for p in load_problems(tmp_path)] == ["2", "4"]
    assert load_problems(tmp_path)[1].source == "data/train-00001-of-00002.jsonl:1"
    write_rows(tmp_path / "data" / "test.csv", [{"problem": "3+3", "answer": 6}])
    with pytest.raises(DataError, match=r"several splits \(test, train\)"):
        load_problems(tmp_path)
    assert [p.answer for p in load_problems(tmp_path, split="test")] == ["6"]
    with pytest.raises(DataError, match="no file of split='dev'"):
        load_problems(tmp_path, split="dev")
    with pytest.raises(DataError, match="is one file"):
        load_problems(tmp_path / "data" / "test.csv", split="test")


def test_duplicates_are_counted_and_can_be_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"problem": f"{i % 3}+1", "answer": i % 3 + 1} for i in range(12)]
    rows.append({"problem": "0+1", "answer": 7})
    path = write_rows(tmp_path / "p.jsonl", rows)
    with caplog.at_level(logging.WARNING):
        problems = load_problems(path)
    assert len(caplog.records) == 1
    assert "10 rows repeat a problem (3 different problems, 1 with another" in caplog.text
    assert (len(problems), problems.num_distinct, problems.num_conflicts) == (13, 3, 1)
    fewer = load_problems(path, deduplicate=True)
    assert [p.answer for p in fewer] == ["1", "2", "3"]
    assert fewer.num_duplicates == 10


def test_limit(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "p.jsonl", [GOOD, {"problem": "2", "answer": 2}, {"problem": "bad"}]
    )
    assert len(load_problems(path, limit=2)) == 2  # what lies behind is not even read
    with pytest.raises(SettingError, match="limit=0"):
        load_problems(path, limit=0)


def test_problem_sets_are_immutable_and_travel(tmp_path: Path) -> None:
    problems = load_problems(write_rows(tmp_path / "p.jsonl", [DAPO, DAPO]))
    with pytest.raises(AttributeError, match="cannot assign to field 'name'"):
        problems.name = "x"  # type: ignore[misc]
    problems[0].problem[0]["content"] = "changed"  # type: ignore[index, call-overload]
    assert problems[0].problem == CHAT
    copy = pickle.loads(pickle.dumps(problems))  # noqa: S301 - our own bytes
    assert list(copy) == list(problems)
    assert copy.name == problems.name
    for index in (2, -3):
        with pytest.raises(IndexError):
            problems[index]


def test_repeated_problems_are_held_once(tmp_path: Path) -> None:
    rows = [{"problem": f"{i} " + "x" * 2000, "answer": i} for i in range(1, 51)] * 100
    problems = load_problems(write_rows(tmp_path / "p.jsonl", rows))
    assert len(problems) == 5000
    assert len(pickle.dumps(problems)) < 50 * 2100 + 5000 * 20
