"""Published layouts are recognised by themselves, with the types that parquet hands over."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_files import write_rows
from hypothesis import given
from hypothesis import strategies as st
from published_layouts import ASKED, LAYOUTS, TASK
from strategies import examples

from rllib_dapo.data.load import load_problems, problems_from_rows
from rllib_dapo.data.schemas import detect_schema
from rllib_dapo.errors import DataError


@pytest.mark.parametrize("layout", LAYOUTS)
def test_published_layouts(tmp_path: Path, layout: str) -> None:
    row, problem, answer = LAYOUTS[layout]
    path = write_rows(tmp_path / "p.parquet", [row, row])
    assert [(p.problem, p.answer) for p in load_problems(path)] == [(problem, answer)] * 2
    # Through pandas chats arrive as arrays of mappings, numbers as numpy's.
    frame = pd.read_parquet(path)
    assert [(p.problem, p.answer) for p in problems_from_rows(frame.to_dict("records"))] == [
        (problem, answer)
    ] * 2
    # What was nested, as JSON in a text (CSV, databases).
    flat = {k: json.dumps(v) if isinstance(v, (list, dict)) else v for k, v in row.items()}
    (loaded,) = load_problems(write_rows(tmp_path / "flat.parquet", [flat]))
    assert (loaded.problem, loaded.answer) == (problem, answer)


def test_pandas_hands_chats_over_as_arrays(tmp_path: Path) -> None:
    frame = pd.read_parquet(write_rows(tmp_path / "p.parquet", [LAYOUTS["DAPO-Math-17k"][0]]))
    assert isinstance(frame["prompt"][0], np.ndarray)
    assert isinstance(frame["reward_model"][0], dict)
    assert isinstance(frame["prompt"][0][0], dict)


def test_a_chat_stored_as_a_mapping_of_lists() -> None:
    lists = {"role": np.array(["user"], object), "content": np.array([TASK], object)}
    (loaded,) = problems_from_rows([{"prompt": lists, "answer": 42}])
    assert loaded.problem == [{"role": "user", "content": TASK}]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([42], pa.int8()),
        ([42], pa.uint64()),
        ([42], pa.float32()),
        ([Decimal("42.00")], pa.decimal128(9, 2)),
        (["42"], pa.dictionary(pa.int8(), pa.string())),
        (["42"], pa.large_string()),
        ([["42"]], pa.list_(pa.string())),
        ([{"ground_truth": 42}], pa.struct([("ground_truth", pa.int64())])),
    ],
)
def test_every_type_of_an_answer_column(tmp_path: Path, values: list[Any], kind: Any) -> None:
    table = pa.table({"problem": [TASK], "answer": pa.array(values, kind)})
    pq.write_table(table, tmp_path / "p.parquet")
    expected = "42.00" if pa.types.is_decimal(kind) else "42"
    assert load_problems(tmp_path / "p.parquet")[0].answer == expected


@pytest.mark.parametrize(
    ("values", "kind", "found"),
    [
        ([None], pa.int64(), "found nothing"),
        ([b"42"], pa.binary(), "b'42'"),
        ([True], pa.bool_(), "True"),
        ([float("inf")], pa.float64(), "not a finite number"),
        ([["42", "43"]], pa.list_(pa.string()), "2 ground truths"),
        ([[]], pa.list_(pa.string()), "0 ground truths"),
        ([{"style": "rule"}], pa.struct([("style", pa.string())]), "'style'"),
        ([Decimal("NaN")], None, "stands for a missing answer"),
    ],
)
def test_useless_types_name_file_row_and_column(
    tmp_path: Path, values: list[Any], kind: Any, found: str
) -> None:
    if kind is None:
        with pytest.raises(DataError, match=f"rows, row 1, column 'answer': .*{found}"):
            problems_from_rows([{"problem": TASK, "answer": values[0]}])
        return
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"problem": [TASK], "answer": pa.array(values, kind)}), path)
    with pytest.raises(DataError) as caught:
        load_problems(path)
    assert f"{path}, row 1, column 'answer" in str(caught.value)
    assert found in str(caught.value)


@pytest.mark.parametrize(
    ("row", "fragment"),
    [
        ({"messages": ASKED}, "column 'messages': found a chat without an answer"),
        (
            {"messages": [*ASKED, {"role": "assistant", "content": "It is surely forty-two."}]},
            "found no \\boxed answer",
        ),
        (
            {"prompt": [{"role": "assistant", "content": "hm"}], "answer": "1"},
            "does not end in a user message",
        ),
        (
            {"prompt": ASKED, "reward_model": {"style": "rule"}},
            "column 'reward_model.ground_truth': missing; reward_model has 'style'",
        ),
        ({"prompt": ASKED, "reward_model": "rule"}, "reward_model is 'rule', no mapping"),
        ({"prompt": ASKED, "extra_info": {"index": 1}}, "column 'extra_info.answer': missing"),
        ({"prompt": [{"role": "user", "content": None}], "answer": 1}, "content is None"),
        ({"instruction": "Add.", "input": "1, 2", "output": "3"}, "set problem_key"),
    ],
)
def test_half_layouts_are_refused(row: dict[str, Any], fragment: str) -> None:
    with pytest.raises(DataError) as caught:
        problems_from_rows([row])
    assert fragment in str(caught.value)
    assert "rows, row 1" in str(caught.value)


def test_answers_of_dropped_rows_do_not_count_as_answers() -> None:
    rows = [{"problem": TASK, "answer": answer} for answer in (42, "1/2")]
    assert problems_from_rows(rows, deduplicate=True).integer_answers
    assert not problems_from_rows(rows).integer_answers


def test_a_folder_of_one_problem_per_file(tmp_path: Path) -> None:
    for number in (1, 2):
        row = {"problem": f"{number}+1?", "solution": f"$\\boxed{{{number + 1}}}$"}
        (tmp_path / f"{number}.json").write_text(json.dumps(row))  # not a list of rows
    problems = load_problems(tmp_path)
    assert [(p.answer, p.source) for p in problems] == [("2", "1.json:1"), ("3", "2.json:1")]


def test_the_order_of_columns_does_not_matter() -> None:
    for row, _, _ in LAYOUTS.values():
        assert detect_schema(row) == detect_schema(reversed(list(row)))


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["\\boxed{", "#### ", '{"role": 1}', '["', "[{", "\ud800", "{}", "[]"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["role", "content", "ground_truth", "answer", "x"]), inner, max_size=3
    ),
    max_leaves=6,
)  # fmt: skip


@examples(300)
@given(problem=junk, answer=junk, as_arrays=st.booleans())
def test_any_row_is_read_or_refused_by_name(problem: Any, answer: Any, as_arrays: bool) -> None:
    if as_arrays and isinstance(problem, list):
        problem = np.array([*problem, None], dtype=object)[:-1]
    row = {"prompt": problem, "reward_model": answer, "extra_info": 1}
    for key in (None, "reward_model"):
        try:
            (loaded,) = problems_from_rows([row], answer_key=key)
        except DataError as error:
            assert "rows, row 1, column '" in str(error)  # noqa: PT017 - both outcomes are right
        else:
            assert loaded.answer
            assert loaded.text.strip()
            loaded.answer.encode()
