"""What a run poses: prompts that fit, shares of a mixture, and no training on the test set."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from data_files import write_rows
from small_tokenizers import CHAT_TEMPLATE, make_tokenizer

from rllib_dapo.data.load import problems_from_rows
from rllib_dapo.data.overlap import find_overlap
from rllib_dapo.data.prompts import PromptRenderer
from rllib_dapo.envs.math_env import MathEnv
from rllib_dapo.errors import SettingError
from rllib_dapo.rollout import problem_source
from rllib_dapo.rollout.problem_source import ProblemSource

MATH = "rllib_dapo/Math-v0"


@pytest.fixture(autouse=True)
def tokenizer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One token per character: prompts are as long as their text, plus BOS and newline."""
    made = make_tokenizer()
    monkeypatch.setattr(
        PromptRenderer,
        "from_settings",
        lambda settings: PromptRenderer(
            made, template="plain", max_prompt_length=settings.max_prompt_length
        ),
    )
    return made


def write(path: Path, texts: list[Any]) -> str:
    rows = [{"problem": text, "answer": i} for i, text in enumerate(texts)]
    return str(write_rows(path, rows))


def config(
    env_config: dict[str, Any], evaluation: dict[str, Any] | None = None, **more: Any
) -> Any:
    """As much of a configuration as problems need."""
    settings = SimpleNamespace(
        env=MATH, env_config=env_config, seed=1, max_prompt_length=20, evaluation_interval=None,
        reward_functions=(),
    )  # fmt: skip
    vars(settings).update(more)
    other = SimpleNamespace(**{**vars(settings), "env_config": evaluation or env_config})
    settings.get_evaluation_config_object = lambda: other
    return settings


def test_long_prompts_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "p.jsonl", ["short", "x" * 19, "also short", "x" * 18, "y" * 40])
    source = ProblemSource(config({"dataset": path}))
    assert sorted(ref.index for ref in source.take(3)) == [0, 2, 3]
    assert "2 of 5 problems (env_config) are left out" in caplog.text
    assert "max_prompt_length=20 tokens, the longest has 42" in caplog.text
    # An evaluation poses them: they fail and count as wrong.
    assert [ref.index for ref in source.evaluation_refs(9)] == [0, 1, 2, 3, 4]
    with pytest.raises(SettingError, match=r"none of the 5 problems .* longest prompt has 42"):
        ProblemSource(config({"dataset": path}, max_prompt_length=3))


def test_repeated_problems_are_rendered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "p.jsonl", ["a", "b" * 30, "c"] * 50)
    reset, resets = MathEnv.reset, []

    def counted(self: MathEnv, **options: Any) -> Any:
        resets.append(options)
        return reset(self, **options)

    monkeypatch.setattr(MathEnv, "reset", counted)
    monkeypatch.setattr(problem_source, "_LARGEST_SCAN", 3)
    source = ProblemSource(config({"dataset": path}))
    assert len(resets) == 3
    assert Counter(ref.index % 3 for ref in source.take(100)) == {0: 50, 2: 50}


def test_too_many_different_problems_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problem_source, "_LARGEST_SCAN", 3)
    path = write(tmp_path / "p.jsonl", ["a", "b" * 30, "c", "d"])
    assert sorted(r.index for r in ProblemSource(config({"dataset": path})).take(4)) == [0, 1, 2, 3]


def test_the_order_without_long_prompts_is_the_streams(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [str(i) for i in range(7)])
    source = ProblemSource(config({"dataset": path}, seed=3))
    taken = [ref.index for ref in source.take(16)]
    assert taken == [5, 6, 2, 1, 4, 3, 0, 2, 1, 4, 0, 5, 6, 3, 4, 0]


class Plain(gym.Env[str, str]):
    """A finite environment that does not tell its problems."""

    num_problems = 5

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        return "x" * (6 * options["index"]), {}


def test_other_finite_environments_are_scanned_too() -> None:
    source = ProblemSource(config({}, env=Plain))
    assert sorted(ref.index for ref in source.take(4)) == [0, 1, 2, 3]


def test_a_mixture_keeps_its_shares_when_long_prompts_go(tmp_path: Path) -> None:
    easy = write(tmp_path / "easy.jsonl", [f"e{i}" for i in range(4)] + ["z" * 30] * 2)
    hard = write(tmp_path / "hard.jsonl", ["y" * 30, *(f"h{i}" for i in range(7))])
    dataset = [easy, {"path": hard, "weight": 3}]
    source = ProblemSource(config({"dataset": dataset}))
    counts = Counter("easy" if ref.index < 6 else "hard" for ref in source.take(400))
    assert counts == {"easy": pytest.approx(100, abs=1), "hard": pytest.approx(300, abs=1)}
    assert {r.index for r in source.take(100)} == {0, 1, 2, 3, *range(7, 14)}
    state = json.loads(json.dumps(source.get_state()))
    again = ProblemSource(config({"dataset": dataset}))
    again.set_state(state)
    assert again.take(50) == source.take(50)
    with pytest.raises(SettingError, match="restore with the sources and weights"):
        ProblemSource(config({"dataset": [easy, {"path": hard, "weight": 2}]})).set_state(state)
    evaluated = [ref.index for ref in source.evaluation_refs(8)]
    assert Counter("easy" if i < 6 else "hard" for i in evaluated) == {"easy": 2, "hard": 6}
    assert source.evaluation_refs(8) == source.evaluation_refs(8)
    assert sorted(ref.index for ref in source.evaluation_refs(99)) == list(range(14))


def test_a_source_of_which_nothing_fits_is_named(tmp_path: Path) -> None:
    dataset = [write(tmp_path / "a.jsonl", ["a"]), write(tmp_path / "b.jsonl", ["b" * 50])]
    with pytest.raises(SettingError, match="source 'b' is left; leave it out, or raise") as caught:
        ProblemSource(config({"dataset": dataset}))
    assert caught.value.setting == "max_prompt_length"


# -- Overlap ---------------------------------------------------------------------------------


def test_shared_problems_are_warned_about_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = write(
        tmp_path / "train.jsonl", ["Add 1.", "Add  $2$.", "Add 3.", "Add 4.", "ADD 2."] * 2
    )
    test = write(tmp_path / "test.jsonl", ["Add 9.", "add 2.", "ADD 4.", "Add 2."])
    settings = config({"dataset": training}, {"dataset": test})
    ProblemSource(settings)
    assert "problems are training problems" not in caplog.text  # nothing is evaluated
    settings.evaluation_interval = 5
    caplog.clear()
    ProblemSource(settings)
    (record,) = [r for r in caplog.records if "training problems" in r.getMessage()]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(
        "2 evaluation problems are training problems too, for instance test.jsonl:2 = train.jsonl:2"
    )
    held_out = write(tmp_path / "other.jsonl", ["Add 10.", "Add 11."])
    caplog.clear()
    ProblemSource(config({"dataset": training}, {"dataset": held_out}, evaluation_interval=5))
    assert "training problems too" not in caplog.text


def test_evaluating_the_training_problems_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "p.jsonl", ["a", "b"])
    ProblemSource(config({"dataset": path}, evaluation_interval=1))
    assert "evaluation poses the 2 training problems" in caplog.text
    caplog.clear()
    ProblemSource(config({}, env="rllib_dapo/Arithmetic-v0", evaluation_interval=1))
    assert not caplog.records


def as_set(texts: list[Any]) -> Any:
    return problems_from_rows([{"problem": t, "answer": i} for i, t in enumerate(texts)])


def wrapped(text: str) -> list[dict[str, str]]:
    content = f"Solve the problem and end with a line Answer: x.\n\n{text}\n\nMind the last line."
    return [{"role": "user", "content": content}]


PLAIN = ["Let $x=1$. Find x.", "Let $y=2$. Find y.", "How many?"]


def test_instructions_around_problems_do_not_hide_them() -> None:
    for training, evaluation in (
        ([wrapped(t) for t in PLAIN], PLAIN[1:]),
        (PLAIN, [wrapped(t) for t in PLAIN[1:]]),
        ([wrapped(t) for t in PLAIN], [wrapped(t) for t in PLAIN[1:]]),
    ):
        overlap = find_overlap(as_set(training), as_set(evaluation))
        assert overlap is not None
        assert overlap.count == 2
        assert (overlap.training.source, overlap.evaluation.source) == ("rows:2", "rows:1")


def test_problems_that_differ_are_not_shared() -> None:
    others = ["Let $x=1$. Find y.", "Let $x=-1$. Find x.", "How many", "How many??", "x+1", "x-1"]
    assert find_overlap(as_set(PLAIN), as_set(others)) is None
    # A beginning that all problems share is no instruction.
    assert find_overlap(as_set(["What is 2?", "What is 3?"]), as_set(["2?", "Name 3?"])) is None
    assert find_overlap(as_set([wrapped("a"), wrapped("b")]), as_set([wrapped("c")])) is None


def test_unicode_forms_are_one_problem() -> None:
    overlap = find_overlap(
        as_set(["Caf\u00e9 \u00bd\uff1f"]), as_set(["CAFE\u0301 \\left 1\u20442?"])
    )
    assert overlap is not None


# -- Lengths ---------------------------------------------------------------------------------


@pytest.mark.parametrize("chat_template", [None, CHAT_TEMPLATE])
@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("eos", [True, False])
@pytest.mark.parametrize("template", ["dapo", "{problem}", "<bos>{problem}", "{problem}<eos>"])
def test_lengths_are_those_of_rendering(
    chat_template: str | None, bos: bool, eos: bool, template: str
) -> None:
    made = make_tokenizer(chat_template, bos=bos, eos=eos)
    renderer = PromptRenderer(made, template=template, system="S")
    chat = [{"role": "system", "content": "T"}, {"role": "user", "content": "Q"}]
    observations = ["1+1", "", "答案 {problem} <eos>", "x" * 300, chat]
    expected = [len(renderer.render(observation).token_ids) for observation in observations]
    assert renderer.lengths(observations).tolist() == expected
    assert renderer.lengths([]).tolist() == []
    assert renderer.lengths(observations).dtype == np.int64


def test_a_restore_with_other_contents_is_refused_or_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "p.jsonl", ["1+1", "2+2", "3+3"])
    saved = ProblemSource(config({"dataset": path})).get_state()
    ProblemSource(config({"dataset": path})).set_state(saved)
    copy = write(tmp_path / "moved.jsonl", ["1+1", "2+2", "3+3"])
    ProblemSource(config({"dataset": copy})).set_state(saved)
    for texts in (["1+1", "2+2", "3+4"], ["2+2", "1+1", "3+3"]):
        other = write(tmp_path / "other.jsonl", texts)
        with pytest.raises(SettingError, match=r"env_config\.dataset: .*on_changed_data: warn"):
            ProblemSource(config({"dataset": other})).set_state(saved)
        allowed = {"dataset": other, "on_changed_data": "warn"}
        ProblemSource(config(allowed)).set_state(saved)
        assert "goes on with the new ones" in caplog.text
    old = {key: value for key, value in saved.items() if key != "data"}
    ProblemSource(config({"dataset": path})).set_state(old)  # of an earlier version


def test_file_order_in_a_run_and_in_a_mixture(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.jsonl", [f"{name}{i}" for i in range(3)]) for name in "ab"]
    plain = ProblemSource(config({"dataset": paths[0], "shuffle": False}))
    assert [ref.index for ref in plain.take(7)] == [0, 1, 2, 0, 1, 2, 0]
    mixed = ProblemSource(config({"dataset": paths, "shuffle": False}))
    indices = [ref.index for ref in mixed.take(12)]
    assert [i for i in indices if i < 3] == [0, 1, 2, 0, 1, 2]
    assert [i - 3 for i in indices if i >= 3] == [0, 1, 2, 0, 1, 2]
    with pytest.raises(SettingError, match=r"env_config\.shuffle='no'"):
        MathEnv(dataset=paths[0], shuffle="no")  # type: ignore[arg-type]
