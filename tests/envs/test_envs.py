"""Environments and how they are registered and built."""

from __future__ import annotations

import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

from rllib_dapo.algorithm.registration import register
from rllib_dapo.envs.make import make_env
from rllib_dapo.envs.math_env import MathEnv
from rllib_dapo.errors import DataError, SettingError

ARITHMETIC, MATH = "rllib_dapo/Arithmetic-v0", "rllib_dapo/Math-v0"


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    rows = [{"question": f"What is {i}·2 in $\\mathbb{{N}}$?", "answer": 2 * i} for i in range(30)]
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(params=[ARITHMETIC, MATH])
def built(request: pytest.FixtureRequest, dataset: str) -> Any:
    """Makes fresh instances of one of the environments."""
    config = {"dataset": dataset} if request.param == MATH else {}
    return lambda: gym.make(request.param, **config)


@pytest.mark.filterwarnings("error::UserWarning")
def test_gymnasium_finds_no_fault(built: Any) -> None:
    check_env(built().unwrapped, skip_render_check=True)


def test_an_index_is_the_same_problem_everywhere(built: Any) -> None:
    one, other = built(), built()
    other.reset(seed=9, options={"index": 3})
    for index in (0, 7, 29):
        first, info = one.reset(seed=1, options={"index": index})
        second, _ = other.reset(seed=2, options={"index": index})
        assert first == second
        assert info["index"] == index
        assert first in one.observation_space


def test_a_group_is_g_episodes_from_one_reset(built: Any) -> None:
    env = built()
    seen = set()
    for _ in range(8):
        observation, _ = env.reset(seed=5, options={"index": 4})
        _, reward, terminated, truncated, info = env.step("Answer: none")
        assert (reward, terminated, truncated) == (-1.0, True, False)
        _, reward, *_ = built_step(env, f"Answer: {info['expected']}")
        assert reward == 1.0
        seen.add((observation, info["expected"]))
    assert len(seen) == 1


def built_step(env: Any, text: str) -> Any:
    env.reset(seed=5, options={"index": 4})
    return env.step(text)


def test_without_an_index_the_seed_decides(built: Any) -> None:
    one, other = built(), built()
    drawn = [one.reset(seed=3)[0]] + [one.reset()[0] for _ in range(5)]
    again = [other.reset(seed=3)[0]] + [other.reset()[0] for _ in range(5)]
    assert drawn == again
    assert len(set(drawn)) > 1


def test_step_before_reset(built: Any) -> None:
    with pytest.raises(RuntimeError, match="before reset"):
        built().unwrapped.step("Answer: 1")


def test_math_info(dataset: str) -> None:
    env = gym.make(MATH, dataset=dataset)
    assert env.unwrapped.num_problems == 30  # type: ignore[attr-defined]
    _, info = env.reset(options={"index": 21})
    assert info == {"index": 21, "source": "p.jsonl:22"}
    _, reward, _, _, info = env.step("Answer: $42.0$")
    assert reward == 1.0
    assert info == {
        "correct": True,
        "extracted": "42.0",
        "expected": "42",
        "matched_by": "value",
    }


def test_math_with_chat_messages(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "2+3?"}]
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"prompt": chat, "reward_model": {"ground_truth": "5"}}))
    observation, info = gym.make(MATH, dataset=str(path)).reset(options={"index": 0})
    assert observation == "2+3?"
    assert info["messages"] == chat


def test_math_settings(dataset: str) -> None:
    strict = MathEnv(dataset=dataset, grader="strict", limit=5)
    assert strict.num_problems == 5
    strict.reset(options={"index": 2})
    assert strict.step("Answer: **4**")[1] == -1.0
    with pytest.raises(SettingError, match="did you mean 'strict'") as caught:
        MathEnv(dataset=dataset, grader="stricct")
    assert caught.value.setting == "env_config.grader"
    with pytest.raises(SettingError, match=r"env_config\.limit=0"):
        MathEnv(dataset=dataset, limit=0)
    with pytest.raises(DataError, match="numbered 0 to 29"):
        MathEnv(dataset=dataset).reset(options={"index": 30})
    with pytest.raises(DataError, match="no such file"):
        MathEnv(dataset=dataset + "x")


def test_integer_data_are_known_and_compared_as_integers(tmp_path: Path) -> None:
    def posed(*answers: object) -> MathEnv:
        rows = [{"problem": f"{i}?", "answer": answer} for i, answer in enumerate(answers)]
        path = tmp_path / "answers.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        env = MathEnv(dataset=str(path))
        env.reset(options={"index": 0})
        return env

    for answers in ([42, "-7", "1,042", "033", 5.0, "$6$", "\\boxed{8}", "#### 9"], [10**30]):
        assert posed(*answers).integer_answers
    for other in ("1/2", "0.5", "42%", "34 m", "x", "2,3", "1.5e-3", "\\frac{1}{2}"):
        assert not posed(42, other).integer_answers
    env = posed(42)
    assert env.grader == "robust"  # what `auto` is
    for answer in ("42", "**42**", "$42$.", "42.0", "042", "+42", "\\boxed{42}", "42 "):
        env.reset(options={"index": 0})
        assert env.step(f"So.\nAnswer: {answer}")[1] == 1.0
    for answer in ("40+2", "84/2", "6*7", "142", "42.5", "41=42", "42, 43", "forty-two", "4 2"):
        env.reset(options={"index": 0})
        assert env.step(f"So.\nAnswer: {answer}")[1] == -1.0


def test_instances_share_their_data(dataset: str) -> None:
    first, second = MathEnv(dataset=dataset), MathEnv(dataset=dataset)
    assert first.problems is second.problems
    assert MathEnv(dataset=dataset, limit=3).problems is not first.problems
    path = Path(dataset)
    path.write_text(path.read_text() + json.dumps({"question": "new", "answer": 1}) + "\n")
    assert MathEnv(dataset=dataset).num_problems == 31


class KeywordEnv(MathEnv):
    """A user's environment with keyword arguments."""


class ConfigEnv(gym.Env[str, str]):
    """A user's environment in RLlib's style."""

    def __init__(self, config: Any) -> None:
        self.config = config


def test_make_env_from_ids_classes_and_callables(dataset: str) -> None:
    assert make_env(ARITHMETIC, {"terms": 4}).unwrapped.terms == 4  # type: ignore[attr-defined]
    assert isinstance(make_env(MATH, {"dataset": dataset}).unwrapped, MathEnv)
    assert isinstance(make_env(KeywordEnv, {"dataset": dataset}), KeywordEnv)
    env = make_env(ConfigEnv, {"anything": 1})
    assert isinstance(env, ConfigEnv)
    assert env.config["anything"] == 1
    assert env.config.worker_index == 0
    assert make_env(lambda dataset: MathEnv(dataset=dataset), {"dataset": dataset})


@pytest.mark.parametrize("env", [MATH, KeywordEnv, MathEnv])
def test_unknown_settings_get_the_nearest_name(env: Any, dataset: str) -> None:
    with pytest.raises(SettingError, match="did you mean 'deduplicate'") as caught:
        make_env(env, {"dataset": dataset, "dedupicate": True})
    assert caught.value.setting == "env_config.dedupicate"
    with pytest.raises(SettingError, match="needs this setting") as caught:
        make_env(env, {})
    assert caught.value.setting == "env_config.dataset"


def test_unknown_environments_get_the_nearest_name() -> None:
    with pytest.raises(SettingError, match="did you mean 'rllib_dapo/Math-v0'") as caught:
        make_env("rllib_dapo/Maths-v0")
    assert caught.value.setting == "env"
    with pytest.raises(SettingError, match="no such environment"):
        make_env("no_such_module:Env-v0")
    with pytest.raises(SettingError, match="made a int, not a gymnasium environment"):
        make_env(lambda: 3, {})  # type: ignore[arg-type, return-value]


def test_ray_knows_the_names(dataset: str) -> None:
    from ray.tune import register_env, registry

    register()  # again: nothing breaks
    known: Any = registry._global_registry
    creator = known.get(registry.ENV_CREATOR, MATH)
    assert creator({"dataset": dataset}).unwrapped.num_problems == 30
    with pytest.raises(SettingError, match="did you mean 'terms'"):
        known.get(registry.ENV_CREATOR, ARITHMETIC)({"term": 3})
    register_env("mine", lambda context: ConfigEnv(context))
    assert make_env("mine", {"a": 1}).config["a"] == 1  # type: ignore[attr-defined]


def test_the_algorithm_is_registered_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.tune import registry

    class Stand:
        pass

    module = types.ModuleType("rllib_dapo.algorithm.dapo")
    module.DAPO = Stand  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rllib_dapo.algorithm.dapo", module)
    assert registry.get_trainable_cls("DAPO") is Stand


def test_registration_is_repeated_behind_every_init() -> None:
    from ray._private import worker
    from ray.tune import registry

    register()
    ours = [hook for hook in worker._post_init_hooks if hook.__module__.startswith("rllib_dapo")]
    assert len(ours) == 1
    known: Any = registry._global_registry
    if not registry._internal_kv_initialized():
        known._to_flush.clear()  # what a flush into a cluster that is gone leaves behind
        assert not known.contains(registry.ENV_CREATOR, MATH)
        ours[0]()
        assert known.contains(registry.ENV_CREATOR, MATH)
        assert known.contains(registry.TRAINABLE_CLASS, "DAPO")


def test_registering_imports_nothing_heavy() -> None:
    import subprocess

    code = (
        "import sys; from rllib_dapo.algorithm.registration import register; register();"
        "sys.exit(bool({'torch', 'transformers', 'vllm', 'ray.rllib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_environments_can_be_pickled(dataset: str) -> None:
    env = MathEnv(dataset=dataset)
    copy = pickle.loads(pickle.dumps(env))  # noqa: S301 - our own bytes
    assert copy.reset(options={"index": 3})[0] == env.reset(options={"index": 3})[0]
