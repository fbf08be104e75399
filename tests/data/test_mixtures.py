"""Mixtures: exact shares over any stretch, epochs per source, resuming, and their settings."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from data_files import write_rows
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from rllib_dapo.data.mixture import Mixture
from rllib_dapo.data.stream import ProblemStream
from rllib_dapo.envs.make import make_env
from rllib_dapo.envs.math_env import MathEnv
from rllib_dapo.errors import DataError, SettingError


def make_mixture(sizes: Sequence[int], weights: Sequence[Any]) -> Mixture:
    names = tuple(f"s{i}" for i in range(len(sizes)))
    return Mixture(names, tuple(sizes), tuple(Fraction(str(w)) for w in weights))


def make_stream(sizes: Sequence[int], weights: Sequence[Any], seed: int = 0) -> ProblemStream:
    return ProblemStream(sum(sizes), seed, make_mixture(sizes, weights))


def source_of(index: int, sizes: Sequence[int]) -> int:
    return int(np.searchsorted(np.cumsum(sizes), index, side="right"))


sources = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 50) | st.sampled_from([0.1, 0.25, 1e-3, 1000])),
    min_size=2,
    max_size=5,
)


@examples(150)
@given(parts=sources, seed=st.integers(0, 2**63 - 1), start=st.integers(0, 10**9))
def test_shares_are_exact_over_any_stretch(
    parts: list[tuple[int, Any]], seed: int, start: int
) -> None:
    sizes, weights = zip(*parts, strict=True)
    mixture = make_mixture(sizes, weights)
    total = sum(mixture.weights)
    before = mixture.draws(start, seed)
    for length in (1, 7, 100, 10_001):
        after = mixture.draws(start + length, seed)
        assert sum(after) == start + length
        for i, weight in enumerate(mixture.weights):
            wanted = length * weight / total
            assert abs(after[i] - before[i] - wanted) <= 2 * len(sizes)


def test_two_sources_are_never_off_by_more_than_one() -> None:
    mixture = make_mixture([5, 5], [3, 1])
    for position in range(1, 200):
        first, second = mixture.draws(position, 11)
        assert abs(first - position * 0.75) < 1
        assert abs(second - position * 0.25) < 1


@examples(60)
@given(parts=sources, seed=st.integers(0, 10**6), batch=st.integers(1, 40))
def test_each_source_goes_through_epochs_of_its_own(
    parts: list[tuple[int, Any]], seed: int, batch: int
) -> None:
    sizes, weights = zip(*parts, strict=True)
    stream = make_stream(sizes, weights, seed)
    refs = [ref for _ in range(-(-300 // batch)) for ref in stream.take(batch)]
    assert [ref.position for ref in refs] == list(range(len(refs)))
    for source, size in enumerate(sizes):
        start = sum(sizes[:source])
        posed = [ref.index - start for ref in refs if source_of(ref.index, sizes) == source]
        for epoch in range(len(posed) // size):
            assert sorted(posed[epoch * size : (epoch + 1) * size]) == list(range(size))
        assert stream.epochs[source] == len(posed) / size
    assert stream.epoch == max(stream.epochs)


@examples(60)
@given(
    parts=sources,
    seed=st.integers(0, 2**63 - 1),
    batches=st.lists(st.integers(0, 25), max_size=6),
    cut=st.integers(0, 6),
)
def test_restored_equals_uninterrupted(
    parts: list[tuple[int, Any]], seed: int, batches: list[int], cut: int
) -> None:
    sizes, weights = zip(*parts, strict=True)
    whole = make_stream(sizes, weights, seed)
    expected = [whole.take(n) for n in batches]
    first = make_stream(sizes, weights, seed)
    got = [first.take(n) for n in batches[:cut]]
    state = json.loads(json.dumps(first.get_state()))
    second = make_stream(sizes, weights, seed)
    second.take(3)
    second.set_state(state)
    assert got + [second.take(n) for n in batches[cut:]] == expected


def test_seeds_and_sources_differ() -> None:
    orders = [[r.index for r in make_stream([50, 50], [1, 1], s).take(100)] for s in (1, 2)]
    assert orders[0] != orders[1]
    first = [i for i in orders[0] if i < 50]
    second = [i - 50 for i in orders[0] if i >= 50]
    assert first != second
    rhythms = {tuple(make_mixture([1, 1], [2, 5]).draws(p, s) for p in range(7)) for s in range(9)}
    assert len(rhythms) > 2


def test_states_of_other_mixtures_are_refused() -> None:
    state = make_stream([4, 6], [1, 2]).get_state()
    for other in (
        make_stream([4, 6], [1, 3]),
        make_stream([6, 4], [1, 2]),
        make_stream([4, 3, 3], [1, 1, 1]),
        ProblemStream(10, 0),
    ):
        with pytest.raises(SettingError, match=r"a mixture of 4 problems × 1 and 6 problems × 2"):
            other.set_state(state)
    with pytest.raises(SettingError, match="ran over one data set"):
        make_stream([4, 6], [1, 2]).set_state(ProblemStream(10, 0).get_state())
    with pytest.raises(ValueError, match="a mixture of 10 of 11"):
        ProblemStream(11, 0, make_mixture([4, 6], [1, 2]))


def test_without_a_mixture_the_order_is_as_ever() -> None:
    refs = ProblemStream(7, 3).take(16)
    assert [r.index for r in refs] == [5, 6, 2, 1, 4, 3, 0, 2, 1, 4, 0, 5, 6, 3, 4, 0]
    assert [r.seed for r in refs[:3]] == [1859154300, 231335753, 1101916081]
    many = [(r.position, r.index, r.seed) for r in ProblemStream(100, 42).take(250)]
    assert hashlib.sha256(repr(many).encode()).hexdigest()[:16] == "237438d51b1838ff"
    assert ProblemStream(7, 3).get_state() == {"position": 0, "seed": 3, "num_problems": 7}


def test_problems_left_out_change_sizes_not_weights() -> None:
    mixture = make_mixture([3, 4, 2], [1, 2, 3])
    kept = mixture.kept(np.array([0, 2, 3, 8]))
    assert (kept.sizes, kept.weights, kept.starts) == ((2, 1, 1), mixture.weights, (0, 2, 3, 4))
    with pytest.raises(DataError, match="no problem of the source 's1' is left"):
        mixture.kept(np.array([0, 8]))


def test_the_first_problems_are_of_every_source() -> None:
    mixture = make_mixture([100, 2, 100], [1, 1, 2])
    first = mixture.first(40).tolist()
    counts = Counter(source_of(i, mixture.sizes) for i in first)
    assert counts[1] == 2  # it has no more
    assert counts[2] == pytest.approx(2 * counts[0], abs=2)
    assert sorted(i for i in first if i < 100) == list(range(counts[0]))
    assert sorted(mixture.first(10**6)) == list(range(202))


# -- The setting -----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, count in (("easy", 4), ("hard", 6)):
        rows = [{"problem": f"{name} {i}", "answer": i} for i in range(count)]
        write_rows(tmp_path / f"{name}.jsonl", rows)
    other = [{"q": "half?", "a": "1/2"}, {"q": "half?", "a": "1/2"}, {"q": "third?", "a": "1/3"}]
    write_rows(tmp_path / "named.jsonl", other)
    return tmp_path


def test_sources_are_numbered_through(folder: Path) -> None:
    named = {
        "path": str(folder / "named.jsonl"),
        "weight": 0.5,
        "problem_key": "q",
        "answer_key": "a",
        "deduplicate": True,
        "name": "fractions",
    }
    dataset = [str(folder / "easy.jsonl"), {"path": str(folder / "hard.jsonl"), "limit": 2}, named]
    env: Any = make_env("rllib_dapo/Math-v0", {"dataset": dataset}).unwrapped
    assert env.num_problems == 8
    assert env.mixture == Mixture(
        ("easy", "hard", "fractions"), (4, 2, 2), (Fraction(1), Fraction(1), Fraction(1, 2))
    )
    posed = [env.reset(options={"index": i}) for i in range(8)]
    assert [text for text, _ in posed][3:7] == ["easy 3", "hard 0", "hard 1", "half?"]
    assert posed[4][1] == {"index": 4, "source": "hard.jsonl:1", "dataset": "hard"}
    assert posed[7][1] == {"index": 7, "source": "named.jsonl:3", "dataset": "fractions"}
    env.reset(options={"index": 5})
    _, reward, _, _, info = env.step("Answer: 1")
    assert (reward, info["dataset"]) == (1.0, "hard")
    assert env.problems[-1] == env.problems[7]
    assert [p.source for p in env.problems[2:5]] == [
        "easy.jsonl:3",
        "easy.jsonl:4",
        "hard.jsonl:1",
    ]
    for index in (8, -9):
        with pytest.raises(IndexError):
            env.problems[index]
    with pytest.raises(DataError, match=r"easy \+ hard \+ fractions has 8 problems"):
        env.reset(options={"index": 8})
    copy = pickle.loads(pickle.dumps(env))  # noqa: S301 - our own bytes
    assert list(copy.problems) == list(env.problems)


def test_sources_are_shared_with_other_environments(folder: Path) -> None:
    alone = MathEnv(dataset=str(folder / "easy.jsonl"))
    mixed: Any = MathEnv(dataset=[str(folder / "easy.jsonl"), str(folder / "hard.jsonl")])
    assert mixed.problems.parts[0] is alone.problems
    assert alone.mixture is None


def test_a_list_of_one_is_no_mixture(folder: Path) -> None:
    env: Any = gym.make("rllib_dapo/Math-v0", dataset=[{"path": str(folder / "easy.jsonl")}])
    assert env.unwrapped.mixture is None
    assert env.reset(options={"index": 1})[1] == {"index": 1, "source": "easy.jsonl:2"}


def test_defaults_hold_for_sources_that_do_not_say_otherwise(folder: Path) -> None:
    dataset = [str(folder / "easy.jsonl"), {"path": str(folder / "hard.jsonl"), "limit": 5}]
    env: Any = MathEnv(dataset=dataset, limit=3)
    assert env.mixture.sizes == (3, 5)


def test_names(folder: Path) -> None:
    for split in ("train", "test"):
        (folder / split).mkdir()
        (folder / split / "p.jsonl").write_text('{"problem": "1?", "answer": 1}\n')
    paths = [str(folder / "train" / "p.jsonl"), str(folder / "test" / "p.jsonl")]
    assert MathEnv(dataset=paths).mixture.names == tuple(paths)  # type: ignore[union-attr]
    twice = [{"path": paths[0], "name": "a"}, {"path": paths[1], "name": "a"}]
    with pytest.raises(SettingError, match="2 sources are called 'a'"):
        MathEnv(dataset=twice)
    with pytest.raises(SettingError, match="give each a name of its own"):
        MathEnv(dataset=[paths[0], paths[0]])


@pytest.mark.parametrize(
    ("dataset", "message", "setting"),
    [
        ([], "use a path, an id on the hub, or a list", "dataset"),
        ({"path": "x"}, "use a path, an id on the hub, or a list", "dataset"),
        (3, "use a path, an id on the hub, or a list", "dataset"),
        ("", "name a file, a folder or an id", "dataset.path"),
        (["EASY", 3], r"dataset\[1\]=3: use a path", "dataset[1]"),
        (["EASY", {"weight": 1}], r"dataset\[1\]\.path=None", "dataset[1].path"),
        (["EASY", {"path": "HARD", "wieght": 1}], "did you mean 'weight'", "dataset[1].wieght"),
        (["EASY", {"path": "HARD", "weight": 0}], "weight=0: use a number", "dataset[1].weight"),
        (["EASY", {"path": "HARD", "weight": -1}], "leave out a source", "dataset[1].weight"),
        (["EASY", {"path": "HARD", "weight": "2"}], "weight='2'", "dataset[1].weight"),
        (["EASY", {"path": "HARD", "weight": True}], "weight=True", "dataset[1].weight"),
        (["EASY", {"path": "HARD", "weight": float("nan")}], "nan", "dataset[1].weight"),
        (["EASY", {"path": "HARD", "weight": float("inf")}], "inf", "dataset[1].weight"),
        (["EASY", {"path": "HARD", "limit": 0}], "limit=0: use 1", "dataset[1].limit"),
        (["EASY", {"path": "HARD", "split": 3}], "split=3: use a text", "dataset[1].split"),
        (["EASY", {"path": "HARD", "deduplicate": 1}], "use true or", "dataset[1].deduplicate"),
    ],
)
def test_impossible_sources(folder: Path, dataset: Any, message: str, setting: str) -> None:
    text = json.dumps(dataset)
    for name in ("EASY", "HARD"):
        text = text.replace(name, str(folder / f"{name.lower()}.jsonl"))
    with pytest.raises(SettingError, match=message) as caught:
        MathEnv(dataset=json.loads(text))
    assert caught.value.setting == f"env_config.{setting}"
    assert str(caught.value).startswith("env_config.")


@pytest.mark.parametrize(("weight", "share"), [(0.1, Fraction(1, 10)), (1e-3, Fraction(1, 1000))])
def test_weights_are_what_was_written(folder: Path, weight: float, share: Fraction) -> None:
    dataset = [str(folder / "easy.jsonl"), {"path": str(folder / "hard.jsonl"), "weight": weight}]
    assert MathEnv(dataset=dataset).mixture.weights[1] == share  # type: ignore[union-attr]
