"""The environment over reasoning-gym: its seeds, golds, grading, settings, curricula."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from gymnasium.utils.env_checker import check_env

from rllib_dapo.envs.make import make_env
from rllib_dapo.envs.reasoning_gym_tasks import REFUSED, TASKS
from rllib_dapo.errors import DataError, SettingError
from rllib_dapo.types import ProblemRef

ID = "rllib_dapo/ReasoningGym-v0"
DANGEROUS = [task for task, reason in REFUSED.items() if "runs answers as code" in reason]

installed = pytest.mark.skipif(
    find_spec("reasoning_gym") is None, reason="the extra is not installed"
)


def make(task: str = "chain_sum", **config: Any) -> Any:
    return make_env(ID, {"task": task, **config}).unwrapped


def pose(env: Any, index: int, **options: Any) -> tuple[str, str]:
    """The problem with this index and its gold."""
    question, info = env.reset(seed=0, options={"index": index, **options})
    assert info["index"] == index
    expected: str = env.step("")[4]["expected"]
    return question, expected


@installed
@pytest.mark.filterwarnings("error::UserWarning")
def test_gymnasium_finds_no_fault() -> None:
    check_env(make(), skip_render_check=True)


@installed
@pytest.mark.parametrize("task", TASKS)
def test_every_task_poses_and_grades(task: str) -> None:
    env, other = make(task), make(task)
    for index in (0, 1, 7, 2**31 - 1):
        question, gold = pose(env, index)
        assert (question, gold) == pose(other, index)
        assert question in env.observation_space
        assert re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", gold)
        for answer, reward in ((gold, 1.0), (f"1{gold}", -1.0), (f"{gold} 1", -1.0), ("", -1.0)):
            env.reset(options={"index": index})
            assert env.step(f"Answer: {answer}")[1:4] == (reward, True, False)


@installed
@pytest.mark.parametrize(
    ("task", "config"),
    [
        ("chain_sum", {"min_terms": 4, "min_digits": 6, "max_digits": 9}),
        ("gcd", {"min_numbers": 3, "max_numbers": 4, "max_value": 10**9}),
    ],
)
def test_no_two_of_ten_thousand_problems_are_the_same(task: str, config: dict[str, int]) -> None:
    train, validation = (
        make(task, task_config=config),
        make(task, task_config=config, split="validation"),
    )
    seen = {train.reset(options={"index": i})[0] for i in range(10_000)}
    assert len(seen) == 10_000
    held_out = {validation.reset(options={"index": i})[0] for i in range(500)}
    assert len(held_out) == 500
    assert not seen & held_out


@installed
def test_seeds_of_different_problems_never_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[int, int] = {}
    for split in ("train", "validation"):
        env = make("basic_arithmetic", split=split, task_config={"allow_parentheses": False})
        for generator in env._make:
            draw = generator.draw

            def remembered(seed: int, draw: Any = draw) -> Any:
                assert used.setdefault(seed, index) == index  # noqa: B023 - called at once
                return draw(seed)

            monkeypatch.setattr(generator, "draw", remembered)
        for index in (*range(300), 2**31 - 2, 2**31 - 1):
            env.reset(options={"index": index})
    assert len(used) > 600


@installed
def test_few_questions_still_split_or_are_refused() -> None:
    config = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    train, validation = make(task_config=config), make(task_config=config, split="validation")
    one = {pose(train, i)[0] for i in range(300)}
    other = {pose(validation, i)[0] for i in range(300)}
    assert not one & other
    assert len(one) + len(other) <= 200
    single = {"min_n": 5, "max_n": 5}
    refusing = [
        s
        for s in ("train", "validation")
        if not poses(make("count_bits", task_config=single, split=s))
    ]
    assert len(refusing) == 1


def poses(env: Any) -> bool:
    try:
        env.reset(options={"index": 0})
    except DataError as error:
        return "too few questions" not in str(error)
    return True


HOSTILE = [
    "__import__('os').system('touch {path}')",
    "exec(\"open('{path}', 'w')\")",
    "open('{path}', 'w')",
    "[open('{path}', 'w')]",
    "{{}}.__class__",
    "9**9**9**9",
    "(" * 100_000,
]


@installed
@pytest.mark.parametrize("task", ["chain_sum", "gsm_symbolic", "basic_arithmetic"])
def test_answers_are_never_run(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    env = make(task)
    dataset = type(env._make[0]._dataset(env._make[0]._config(seed=0, size=1)))

    def scorer(*_: Any) -> float:
        raise AssertionError("a scorer of reasoning-gym was called")

    monkeypatch.setattr(dataset, "score_answer", scorer)
    for hostile in HOSTILE:
        answer = hostile.format(path=path)
        for text in (answer, f"Answer: {answer}", rf"\boxed{{{answer}}}"):
            env.reset(options={"index": 3})
            _, reward, _, _, info = env.step(text)
            assert (reward, info["correct"]) == (-1.0, False)
    question, gold = pose(env, 3)
    for text in (question, f"Answer: {question}", f"Answer: {gold} or 7", f"Answer: {gold}+0"):
        env.reset(options={"index": 3})
        assert env.step(text)[1] == -1.0
    assert not path.exists()


@pytest.mark.parametrize("task", DANGEROUS)
def test_tasks_that_run_answers_are_refused(task: str) -> None:
    with pytest.raises(SettingError, match=f"task='{task}': refused, because its scorer runs"):
        make(task)


def test_dangerous_tasks_are_nine() -> None:
    assert len(DANGEROUS) == 9
    assert not set(REFUSED) & set(TASKS)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"task": "chain_sums"}, "did you mean 'chain_sum'"),
        ({"task": "sudoku"}, "not on the list"),
        ({"task": "number_sequence"}, "continued in several ways"),
        ({"split": "test"}, "use 'train' or 'validation'"),
        ({"levels": 3}, "ReasoningGymEnv has no such setting"),
        ({"task_config": {"max_term": 3}}, "did you mean 'max_terms'"),
        ({"task_config": {"seed": 3}}, "leave it out"),
        ({"task_config": {"min_terms": 0}}, "min_terms must be positive"),
        ({"task_config": {"min_terms": "3"}}, "refuses it"),
        ({"curriculum": [{"until": 5}, {"until": 3}]}, "ascending"),
        ({"curriculum": [{}, {}]}, "every level but the last needs one"),
        ({"curriculum": [{"untill": 3}]}, "did you mean 'until'"),
        ({"curriculum": [{"until": 0}]}, "above 0"),
        ({"curriculum": [3]}, "a level is a mapping"),
        ({"curriculum": [{"task_config": {"max_term": 3}}]}, "did you mean 'max_terms'"),
    ],
)
@installed
def test_wrong_settings(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        make_env(ID, {"task": "chain_sum", **config})
    assert str(caught.value).startswith("env_config.")
    assert caught.value.setting is None or caught.value.setting.startswith("env_config.")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(SettingError, match=re.escape("pip install rllib-dapo[reasoning-gym]")):
        make()


@installed
def test_indices_and_steps_out_of_place() -> None:
    env = make()
    with pytest.raises(RuntimeError, match="before reset"):
        env.step("1")
    with pytest.raises(DataError, match="numbered from 0"):
        env.reset(options={"index": -1})
    assert env.num_problems is None
    first = [make().reset(seed=3)[0] for _ in range(2)]
    assert first[0] == first[1] != make().reset(seed=4)[0]


@installed
def test_an_evaluation_has_as_much_of_each_level() -> None:
    levels = [
        {"until": 10, "task_config": {"max_terms": 2}},
        {"task_config": {"max_terms": 3}},
    ]
    env = make(curriculum=levels)
    for index in range(6):
        options = ProblemRef(index, index, index, evaluation=True).options
        assert env.reset(options=options)[1]["level"] == index % 2
        options = ProblemRef(index, index, index).options
        assert env.reset(options=options)[1]["level"] == 0


def test_a_curriculum_goes_by_position() -> None:
    levels = [
        {"until": 10, "task_config": {"max_terms": 2, "max_digits": 1}},
        {"until": 20, "task_config": {"min_terms": 4}},
        {"task_config": {"min_terms": 6, "min_digits": 4}},
    ]
    env = make(task_config={"max_terms": 6}, curriculum=levels)
    terms = {}
    for position in (0, 9, 10, 19, 20, 10**9):
        question, info = env.reset(options={"index": 77, "position": position})
        terms[position] = (info["level"], len(re.findall("[0-9]+", question)))
    assert [level for level, _ in terms.values()] == [0, 0, 1, 1, 2, 2]
    assert terms[0] == terms[9] == (0, 2)
    assert terms[10] == terms[19]
    assert terms[19][1] >= 4
    assert terms[20] == terms[10**9] == (2, 6)
    assert env.reset(options={"index": 15})[1]["level"] == 1  # without a position: the index
