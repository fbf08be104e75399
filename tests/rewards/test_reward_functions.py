"""Reward functions: found and checked before anything starts, called so that nothing hangs."""

from __future__ import annotations

import contextlib
import math
import threading
import time

import hostile_rewards
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from rllib_dapo.errors import RewardError, SettingError
from rllib_dapo.rewards.calls import (
    MAX_HUNG,
    CompletionsToScore,
    NoValue,
    RewardCalls,
    read_value,
    read_values,
)
from rllib_dapo.rewards.functions import (
    RewardFunction,
    load_reward_functions,
    reward_function_names,
)

GROUP = CompletionsToScore(
    "1+2=?", ["3", "44", "555"], [{"correct": i == 0} for i in range(3)], [False] * 3, [2, 3, 4]
)


@pytest.fixture(autouse=True)
def _nothing_left_behind():
    with hostile_rewards.clean():
        yield


@pytest.fixture
def calls():
    caller = RewardCalls(30.0)
    yield caller
    caller.close()


@pytest.fixture
def hurried():
    """With a time limit that hanging functions are meant to reach."""
    caller = RewardCalls(0.5)
    yield caller
    caller.close()


def function(name: str, /, **entry: object) -> RewardFunction:
    (loaded,) = load_reward_functions([{"function": f"hostile_rewards:{name}", **entry}])
    return loaded


def reasons(outcomes: list[float | NoValue]) -> list[object]:
    return [o.reason if isinstance(o, NoValue) else o for o in outcomes]


# -- Found and checked --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "batched", "is_async", "keywords"),
    [
        ("letters", False, False, ("problem", "info", "truncated", "num_tokens")),
        ("everything", False, False, ("problem", "info", "truncated", "num_tokens")),
        ("of_a_group", True, False, ("problem", "infos", "truncated", "num_tokens")),
        ("as_array", True, False, ()),
        ("concurrent", False, True, ("info",)),
        ("async_group", True, True, ("infos",)),
        ("judge", False, True, ()),
        ("judge.method", False, False, ()),
        ("partly", False, False, ()),
    ],
)
def test_the_signature_says_how_a_function_is_called(path, batched, is_async, keywords):
    loaded = function(path, name="f")
    assert (loaded.batched, loaded.is_async, loaded.keywords) == (batched, is_async, keywords)
    assert loaded.weight == 1.0


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"function": "no_such_module_of_mine:f"}, "cannot be imported"),
        ({"function": "hostile_rewards:raisse"}, "did you mean 'raises'"),
        ({"function": "hostile_rewards"}, "package.module:my_reward"),
        ({"function": "hostile_rewards:"}, "package.module:my_reward"),
        ({"weight": 1.0}, "package.module:my_reward"),
        ({"function": "hostile_rewards:Judge"}, "is a class"),
        ({"function": "hostile_rewards:number"}, "is a int"),
        ({"function": "hostile_rewards:no_parameter"}, "`answer`"),
        ({"function": "hostile_rewards:another_name"}, "`answer`"),
        ({"function": "hostile_rewards:by_keyword"}, "`answer`"),
        ({"function": "hostile_rewards:singular"}, "infos"),
        ({"function": "hostile_rewards:letters", "weigth": 1}, "did you mean `weight`"),
        ({"function": "hostile_rewards:letters", "weight": "1"}, "use a number"),
        ({"function": "hostile_rewards:letters", "weight": True}, "use a number"),
        ({"function": "hostile_rewards:letters", "weight": math.nan}, "finite"),
        ({"function": "hostile_rewards:letters", "weight": 1e7}, "finite"),
        ({"function": "hostile_rewards:raises", "name": "a/b"}, "letters"),
        ({"function": "hostile_rewards:raises", "name": "format"}, "built-in"),
        ("hostile_rewards:raises", "mapping"),
    ],
)
def test_what_can_never_work_is_refused_by_name_value_and_remedy(entry, message):
    with pytest.raises(SettingError) as caught:
        load_reward_functions([entry])
    assert message in str(caught.value)
    assert str(caught.value).startswith("reward_functions[0]")
    assert caught.value.setting == "reward_functions"


def test_two_functions_of_one_name_need_names_of_their_own():
    twice = [{"function": "hostile_rewards:raises"}] * 2
    with pytest.raises(SettingError, match=r"reward_functions\[1\]\.name='raises'"):
        reward_function_names(twice)
    assert reward_function_names([twice[0], {**twice[0], "name": "again"}]) == ("raises", "again")


# -- Called -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("letters", [1, 2, 3]),
        ("of_a_group", [1, 2, 3]),
        ("as_array", [0, 1, 2]),
        ("numpy_scalar", [0.5] * 3),
        ("boolean", [1, 0, 0]),
        ("async_group", [1, 1, 1]),
        ("judge", [1, 1, 1]),
        ("partly", [3, 3, 3]),
    ],
)
def test_every_kind_of_function_gives_each_answer_its_value(calls, name, values):
    outcomes = calls.call(function(name, name="f"), GROUP)
    assert outcomes == values
    assert all(type(o) is float for o in outcomes)


def test_a_function_gets_what_it_asks_for_and_copies_of_it(calls):
    calls.call(function("everything"), GROUP)
    assert hostile_rewards.CALLS[1] == ("44", "1+2=?", {"correct": False}, False, 3)
    assert GROUP.infos[0] == {"correct": True}
    hostile_rewards.CALLS.clear()
    calls.call(function("of_a_group"), GROUP)
    assert [
        (GROUP.answers, GROUP.problem, GROUP.infos, [False] * 3, [2, 3, 4])
    ] == hostile_rewards.CALLS


def test_asynchronous_calls_of_a_group_run_at_once(calls):
    assert calls.call(function("concurrent"), GROUP) == [1.0] * 3


def test_all_asynchronous_calls_share_one_event_loop(calls):
    """Clients that a function keeps are bound to the loop they were made in."""
    hostile_rewards.judge.loops.clear()
    for _ in range(3):
        calls.call(function("judge"), GROUP)
    assert len(hostile_rewards.judge.loops) == 1


# -- Failures -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "raised"),
        ("exits", "raised"),
        ("times_out_by_itself", "raised"),
        ("group_raises", "raised"),
        ("async_raises", "raised"),
        ("async_exits", "raised"),
        ("gives_none", "bad_value"),
        ("gives_nan", "bad_value"),
        ("gives_inf", "bad_value"),
        ("gives_text", "bad_value"),
        ("gives_huge", "bad_value"),
        ("gives_array", "bad_value"),
        ("gives_object", "bad_value"),
        ("one_for_all", "bad_value"),
        ("no_end", "bad_value"),
        ("wrong_length", "wrong_length"),
        ("lies", "wrong_length"),
        ("sleeps", "timed_out"),
        ("async_sleeps", "timed_out"),
        ("async_stubborn", "timed_out"),
        ("async_blocks", "timed_out"),
    ],
)
def test_a_failure_has_a_reason_and_costs_no_more_than_the_time_limit(hurried, name, reason):
    started = time.monotonic()
    assert reasons(hurried.call(function(name), GROUP)) == [reason] * 3
    assert time.monotonic() - started < 20.0  # 1.5 s at the worst; the functions take 60
    hurried.timeout_s = 30.0
    assert hurried.call(function("letters"), GROUP) == [1, 2, 3]
    assert hurried.call(function("judge"), GROUP) == [1, 1, 1]


def test_a_failure_of_one_answer_leaves_the_others_their_values(hurried):
    assert reasons(hurried.call(function("only_wrong_raise"), GROUP)) == [1.0, "raised", "raised"]
    assert reasons(hurried.call(function("slow_at_the_end"), GROUP)) == [0.5, 0.5, "timed_out"]


def test_a_call_left_behind_does_not_go_on_with_the_next_answer(hurried):
    hurried.call(function("sleeps"), GROUP)
    (thread,) = [t for t in threading.enumerate() if t.name == "reward function sleeps"]
    assert thread.daemon
    assert hostile_rewards.CALLS == ["3"]
    hostile_rewards.RELEASE.set()
    thread.join(5.0)
    assert not thread.is_alive()
    assert hostile_rewards.CALLS == ["3"]


def assert_well_again(caller: RewardCalls) -> None:
    """Once the calls that hang have ended."""
    hostile_rewards.RELEASE.set()
    caller.timeout_s = 30.0
    for _ in range(100):
        with contextlib.suppress(RewardError):
            assert caller.call(function("letters"), GROUP) == [1, 2, 3]
            assert caller.call(function("judge"), GROUP) == [1, 1, 1]
            caller.close()
            return
        time.sleep(0.1)
    pytest.fail("calls that ended still count as hanging")


@pytest.mark.parametrize("name", ["sleeps", "async_blocks"])
def test_calls_that_hang_do_not_pile_up(name):
    caller = RewardCalls(0.05)
    hanging = function(name)
    for _ in range(MAX_HUNG):
        caller.call(hanging, GROUP)
    with pytest.raises(RewardError, match=f"4 calls of reward functions .{name}."):
        caller.call(function("letters"), GROUP)
    assert_well_again(caller)


def test_stubborn_coroutines_count_as_hanging():
    caller = RewardCalls(0.5)
    for _ in range(2):  # three answers each
        assert reasons(caller.call(function("async_stubborn"), GROUP)) == ["timed_out"] * 3
    with pytest.raises(RewardError, match=r"\d calls of reward functions .async_stubborn."):
        caller.call(function("judge"), GROUP)
    assert_well_again(caller)


# -- Values -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [1, 1.0, True, np.float64(1), np.int32(1), np.bool_(True), np.array(1.0)]
)
def test_every_kind_of_number_is_read(value):
    assert read_value(value) == 1.0


@pytest.mark.parametrize("values", [1.0, "12", b"12", {0: 1.0, 1: 2.0}, {1.0, 2.0}, np.array(1.0)])
def test_what_is_no_sequence_of_numbers_gives_none(values):
    assert reasons(read_values(values, 2)) == ["bad_value"] * 2
    assert len(read_values(values, 1)) == 1


def test_tensors_are_read():
    assert read_value(torch.tensor(1.0)) == 1.0
    assert read_values(torch.tensor([1.0, 2.0]), 2) == [1.0, 2.0]
    assert reasons([read_value(torch.zeros(2))]) == ["bad_value"]


@examples(60)
@given(
    st.recursive(st.none() | st.floats() | st.integers() | st.text(), st.lists), st.integers(1, 4)
)
def test_reading_never_raises_and_gives_one_outcome_per_answer(value, count):
    for outcome in [read_value(value), *read_values(value, count)]:
        assert isinstance(outcome, NoValue) or math.isfinite(outcome)
    assert len(read_values(value, count)) == count
