"""The problem stream: order, epochs, and resuming anywhere."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllib_dapo.data.stream import ProblemStream
from rllib_dapo.errors import SettingError


@given(
    size=st.none() | st.integers(1, 40),
    seed=st.integers(0, 2**63 - 1),
    batches=st.lists(st.integers(0, 25), max_size=8),
    cut=st.integers(0, 8),
)
def test_restored_equals_uninterrupted(
    size: int | None, seed: int, batches: list[int], cut: int
) -> None:
    whole = ProblemStream(size, seed)
    expected = [whole.take(n) for n in batches]
    first = ProblemStream(size, seed)
    got = [first.take(n) for n in batches[:cut]]
    state = json.loads(json.dumps(first.get_state()))  # a checkpoint holds plain values
    second = ProblemStream(size, seed)
    second.take(3)  # whatever it did before
    second.set_state(state)
    assert got + [second.take(n) for n in batches[cut:]] == expected


def test_resuming_at_the_very_end_of_an_epoch() -> None:
    whole = ProblemStream(7, 3)
    whole.take(7)
    again = ProblemStream(7, 3)
    again.set_state(whole.get_state())
    assert again.take(9) == whole.take(9)


@given(size=st.integers(1, 50), batch=st.integers(1, 120), seed=st.integers(0, 1000))
def test_every_problem_once_per_epoch_however_batched(size: int, batch: int, seed: int) -> None:
    stream = ProblemStream(size, seed)
    refs = [ref for _ in range(-(-3 * size // batch)) for ref in stream.take(batch)]
    for epoch in range(3):
        indices = [ref.index for ref in refs[epoch * size : (epoch + 1) * size]]
        assert sorted(indices) == list(range(size))
    assert [ref.position for ref in refs] == list(range(len(refs)))


def test_epochs_and_seeds_differ() -> None:
    stream = ProblemStream(100, 0)
    first, second = stream.take(100), stream.take(100)
    other = ProblemStream(100, 1).take(100)
    orders = [[ref.index for ref in refs] for refs in (first, second, other)]
    assert orders[0] != orders[1]
    assert orders[0] != orders[2]
    assert stream.epoch == 2


def test_endless_indices_are_distinct_and_spread() -> None:
    refs = ProblemStream(None, 5).take(20_000)
    indices = [ref.index for ref in refs]
    assert len(set(indices)) == len(indices)
    assert all(0 <= i < 2**31 for i in indices)
    for shift in range(31):  # every bit is set about half of the time
        assert 0.47 < sum(i >> shift & 1 for i in indices) / len(indices) < 0.53
    assert ProblemStream(None, 5).epoch is None


def test_endless_streams_of_neighbouring_seeds_do_not_overlap_by_a_shift() -> None:
    a = [ref.index for ref in ProblemStream(None, 1).take(500)]
    b = [ref.index for ref in ProblemStream(None, 2).take(500)]
    assert len(set(a) & set(b)) < 5


def test_endless_positions_past_the_first_lap_have_another_order() -> None:
    stream = ProblemStream(None, 5)
    stream.set_state({"position": 2**31 - 2, "seed": 5, "num_problems": None})
    refs = stream.take(102)
    assert [ref.position for ref in refs[:3]] == [2**31 - 2, 2**31 - 1, 2**31]
    second = [ref.index for ref in refs[2:]]
    first = [ref.index for ref in ProblemStream(None, 5).take(100)]
    assert len(set(second)) == 100
    assert len(set(first) & set(second)) < 3


def test_reset_seeds_are_mixed() -> None:
    seeds = [r.seed for s in range(5) for r in ProblemStream(10, s).take(200)]
    assert len(set(seeds)) > 990
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_states_of_other_streams_are_refused() -> None:
    state = ProblemStream(10, 1).get_state()
    with pytest.raises(SettingError, match="10 problems, this one runs over 12 problems"):
        ProblemStream(12, 1).set_state(state)
    with pytest.raises(SettingError, match="endless environment"):
        ProblemStream(None, 1).set_state(state)
    with pytest.raises(SettingError, match="seed=2, but the saved problem stream used seed=1"):
        ProblemStream(10, 2).set_state(state)
    with pytest.raises(SettingError, match="lacks num_problems, position"):
        ProblemStream(10, 1).set_state({"seed": 1})


def test_impossible_arguments() -> None:
    with pytest.raises(SettingError, match="at least 1"):
        ProblemStream(0, 1)
    with pytest.raises(SettingError, match="seed=-1"):
        ProblemStream(3, -1)
    with pytest.raises(ValueError, match="backwards"):
        ProblemStream(3, 1).take(-1)
    assert ProblemStream(3, 1).take(0) == []
