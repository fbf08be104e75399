"""Reward functions get further columns of the data set by asking for them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import gymnasium as gym
import hostile_rewards
import numpy as np
import pytest
from data_files import write_rows
from hostile_rewards import entries
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import scripted_runner
from strategies import examples

from rllib_dapo.algorithm.dapo import DAPOConfig
from rllib_dapo.data.load import load_problems, problems_from_rows
from rllib_dapo.envs.math_env import MathEnv
from rllib_dapo.envs.spaces import UnicodeText
from rllib_dapo.errors import DataError, SettingError
from rllib_dapo.rewards.columns import AskedColumn
from rllib_dapo.rewards.functions import load_reward_functions
from rllib_dapo.rollout.engine.base import Sampling
from rllib_dapo.rollout.problem_source import ProblemSource
from rllib_dapo.rollout.sampling_job import SamplingJob
from rllib_dapo.types import Group, ProblemRef

ROWS = [
    {
        "problem": f"{n}+{n}=?",
        "answer": str(2 * n),
        "level": n,
        "test_cases": {"inputs": [str(n), "0"], "outputs": ["1"]},
        "extra_info": {"index": 10 * n, "split": "train"},
        "unused": "x" * 1000,
    }
    for n in range(1, 5)
]
FORMATS = (".jsonl", ".json", ".parquet")


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    with hostile_rewards.clean():
        yield


def config(path: Path | None, *names: str, **entry: Any) -> DAPOConfig:
    env_config = {} if path is None else {"dataset": str(path)}
    env = "rllib_dapo/Arithmetic-v0" if path is None else "rllib_dapo/Math-v0"
    functions = entries(*names, **entry)
    made = (
        DAPOConfig()
        .environment(env, env_config=env_config)
        .training(group_size=2, minibatch_size=64)
    )
    return made.training(reward_functions=functions)  # type: ignore[no-any-return]


def sample(config: DAPOConfig, evaluation: bool = False) -> list[Group]:
    """The groups of the first two problems, in a runner whose engine says 2 and 3."""
    runner = scripted_runner(lambda prompt, i: f"Answer: {2 + i}")(
        config=config, worker_index=0, num_workers=0
    )
    try:
        refs = tuple(ProblemRef(i, i, i, evaluation) for i in range(2))
        reply = runner.collect(SamplingJob(refs, 2, Sampling(1.0, 1.0, 64), seed=1), seconds=60.0)
    finally:
        runner.stop()
    assert (reply.error, reply.unfinished) == (None, 0)
    return sorted(reply.groups, key=lambda group: group.ref.position)


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_column_reaches_the_function_by_its_name(tmp_path: Path, suffix: str) -> None:
    path = write_rows(tmp_path / f"p{suffix}", ROWS)
    first, second = sample(config(path, "of_a_level"))
    assert [c.components for c in first.completions] == [{"of_a_level": 1.0}, {"of_a_level": 0.0}]
    assert [c.components for c in second.completions] == [{"of_a_level": 0.0}] * 2
    assert sorted(hostile_rewards.CALLS) == [1, 1, 2, 2]


@pytest.mark.parametrize("suffix", FORMATS)
def test_nested_values_arrive_whole_and_calls_share_nothing(tmp_path: Path, suffix: str) -> None:
    path = write_rows(tmp_path / f"p{suffix}", ROWS)
    for groups in (sample(config(path, "with_tests")), sample(config(path, "with_tests"))):
        assert {c.components["with_tests"] for g in groups for c in g.completions} == {3.0}
    more = ["infos", "num_tokens", "problem", "truncated"]
    cases = [{"inputs": [n, "0", "changed"], "outputs": ["1"]} for n in "12"]
    seen = sorted(hostile_rewards.CALLS, key=str)
    expected = [(case, int(case["inputs"][0]), more) for case in cases]
    assert seen == [call for call in expected for _ in range(2)]


def test_a_mapping_names_parts_of_columns_and_the_ground_truth(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "p.parquet", ROWS)
    columns = {"gold": "answer", "style": "extra_info.split", "index": "extra_info.index"}
    sample(config(path, "renamed_columns", columns=columns))
    assert sorted(hostile_rewards.CALLS) == [("2", "train", 10)] * 2 + [("4", "train", 20)] * 2


def test_a_text_that_came_through_csv_is_read_by_its_parts(tmp_path: Path) -> None:
    rows = [{**row, "extra_info": json.dumps(row["extra_info"])} for row in ROWS]
    path = write_rows(tmp_path / "p.csv", rows)
    problems = load_problems(path, columns=["extra_info.index", "level"])
    assert problems[1].columns == {"extra_info.index": 20, "level": "2"}


def test_the_signature_and_the_key_say_what_is_asked() -> None:
    (plain,) = load_reward_functions(entries("with_tests"))
    assert plain.columns == (
        AskedColumn("test_cases", "test_cases"),
        AskedColumn("level", "level", required=False),
    )
    (declared,) = load_reward_functions(entries("letters", columns=["level"]))
    assert declared.columns == (AskedColumn("level", "level"),)
    (none,) = load_reward_functions(entries("everything"))
    assert none.columns == ()


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("letters", "level", "give a list of names"),
        ("letters", 3, "give a list of names"),
        ("letters", [3], "cannot name a column"),
        ("letters", [""], "cannot name a column"),
        ("letters", ["extra_info.index"], "cannot be a keyword"),
        ("letters", {"problem": "question"}, "a meaning of its own"),
        ("letters", {"answer": "solution"}, "a meaning of its own"),
        ("everything", ["level"], "is no parameter of the function"),
        ("of_a_level", {"levle": "difficulty"}, "write {level: difficulty}"),
    ],
)
def test_a_malformed_key_is_refused(name: str, columns: Any, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        load_reward_functions(entries(name, columns=columns))
    assert message in str(caught.value)
    assert "reward_functions[0].columns" in str(caught.value)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    ("columns", "nearest"),
    [
        (["levle"], "'level'"),
        (["extra_info.idnex"], "'index'"),
        (["extra_inf.index"], "extra_info"),
    ],
)
def test_an_unknown_column_is_refused_at_the_start(
    tmp_path: Path, suffix: str, columns: list[str], nearest: str
) -> None:
    path = write_rows(tmp_path / f"p{suffix}", ROWS)
    named = {"wanted": columns[0]}
    with pytest.raises(DataError) as caught:
        config(path, "letters", columns=named).validate()
    for part in (str(path), columns[0], nearest):
        assert part in str(caught.value)


def test_an_environment_without_the_column_is_refused_at_the_start() -> None:
    with pytest.raises(SettingError, match=r"column 'level'.*Arithmetic.*default"):
        config(None, "of_a_level").validate()


class OwnEnv(gym.Env[str, str]):
    """An environment that offers columns of its own accord."""

    num_problems = 2

    def __init__(self) -> None:
        self.observation_space = self.action_space = UnicodeText()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return "1+1=?", {"columns": {"level": 5}}

    def step(self, action: str) -> Any:
        return "", 1.0, True, False, {"correct": True}


def test_any_environment_may_offer_columns() -> None:
    made = config(None, "of_a_level").environment(OwnEnv)
    made.validate()
    assert {c.extra_reward for g in sample(made) for c in g.completions} == {5.0}
    with pytest.raises(SettingError, match=r"'levels'.*did you mean 'level'"):
        config(None, "letters", columns=["levels"]).environment(OwnEnv).validate()


def test_evaluation_data_need_the_columns_of_its_functions(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "p.jsonl", ROWS)
    bare = [{"problem": "1+1=?", "answer": "2"}, {"problem": "1+2=?", "answer": "3"}]
    held_out = str(write_rows(tmp_path / "held_out.jsonl", bare))
    evaluation: dict[str, Any] = {"env_config": {"dataset": held_out}}
    made = config(path, "of_a_level").evaluation(
        evaluation_interval=1, evaluation_config=evaluation
    )
    with pytest.raises((DataError, SettingError), match="no column 'level'"):
        made.validate()
    without = evaluation | {"reward_functions": []}
    made = config(path, "of_a_level").evaluation(evaluation_interval=1, evaluation_config=without)
    made.validate()
    assert [c.correct for g in sample(made, evaluation=True) for c in g.completions] == [
        True, False, False, True,
    ]  # fmt: skip


def test_only_columns_that_are_asked_for_are_kept(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "p.parquet", ROWS)
    assert load_problems(path)[0].columns == {}
    assert "columns" not in MathEnv(dataset=str(path)).reset(seed=0)[1]
    kept = load_problems(path, columns=["level"])
    assert (kept.columns, kept[2].columns) == (("level",), {"level": 3})
    assert load_problems(path, columns={"level": True, "none": False}).columns == ("level",)


def test_all_environments_of_a_process_share_one_copy(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "p.jsonl", ROWS)
    training = MathEnv(dataset=str(path), columns={"level": True})
    evaluation = MathEnv(dataset=str(path), columns={"level": False})
    assert training.problems is evaluation.problems
    missing = MathEnv(dataset=str(path), columns={"levle": False})
    assert missing.reset(seed=0)[1]["columns"] == {}
    with pytest.raises(DataError, match="'levle'"):
        MathEnv(dataset=str(path), columns={"levle": True})


def test_deduplicated_rows_keep_the_columns_of_the_first(tmp_path: Path) -> None:
    rows = [ROWS[0], {**ROWS[0], "level": 9}, ROWS[1]]
    problems = problems_from_rows(rows, deduplicate=True, columns=["level"])
    assert [p.columns["level"] for p in problems] == [1, 2]
    assert [p.columns["level"] for p in problems_from_rows(rows, columns=["level"])] == [1, 9, 2]


def test_a_row_that_lacks_the_column_has_none() -> None:
    rows = [ROWS[0], {"problem": "1+2=?", "answer": "3"}]
    problems = problems_from_rows(rows, columns=["level", "extra_info.index"])
    assert problems[1].columns == {"level": None, "extra_info.index": None}


def test_values_of_other_types_become_plain() -> None:
    day = datetime.datetime(2024, 5, 6, 7, tzinfo=datetime.UTC)
    values = [np.int64(3), np.array([1.5, 2]), Decimal("2.50"), Decimal(4), day, float("nan"), (1,)]
    rows = [{"problem": "?", "answer": "1", "x": value} for value in values]
    read = [p.columns["x"] for p in problems_from_rows(rows, columns=["x"])]
    assert read == [3, [1.5, 2.0], 2.5, 4, "2024-05-06T07:00:00+00:00", None, [1]]


@pytest.mark.parametrize("value", [b"\x89PNG", {"bytes": b"1"}, [object()]])
def test_images_and_the_like_are_refused_by_row_and_column(value: Any) -> None:
    with pytest.raises(DataError, match=r"row 1, column 'x': found .*texts, numbers, lists"):
        problems_from_rows([{"problem": "?", "answer": "1", "x": value}], columns=["x"])


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@examples(100)
@given(values=st.lists(plain, min_size=1, max_size=4))
def test_plain_values_come_back_as_they_were(values: list[Any]) -> None:
    rows = [{"problem": str(i), "answer": "1", "x": value} for i, value in enumerate(values)]
    assert [p.columns["x"] for p in problems_from_rows(rows, columns=["x"])] == values


def test_a_restored_stream_poses_the_same_columns(tmp_path: Path) -> None:
    made = config(write_rows(tmp_path / "p.jsonl", ROWS), "of_a_level").debugging(seed=3)
    source = ProblemSource(made)
    source.take(1)
    state = source.get_state()
    expected = source.take(3)
    again = ProblemSource(made)
    again.set_state(state)
    assert again.take(3) == expected
