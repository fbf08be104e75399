"""Call reward functions in such a way that nothing they do harms the caller.

A plain function runs in a daemon thread of its own. Coroutines run in the event loop of one
daemon thread that lives as long as the caller, so that clients kept between calls stay usable.
A call that has not returned in time is left behind with its thread, because Python cannot end
a thread. When a few such calls still run, the next call is refused, so that they do not pile up.
The threads are daemons, and not those of an executor, so that a call that hangs does not keep
the interpreter from ending.

A call that never releases the interpreter (a regular expression of exponential cost, one huge
power) cannot be limited from inside the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from rllib_dapo.errors import RewardError
from rllib_dapo.rewards.functions import RewardFunction

MAX_HUNG = 4
"""If this many calls that were left behind still run, further calls are refused."""

LARGEST_VALUE = 1e9
"""A value beyond ± this is taken for a mistake, because its square would hide all other
differences in the standard deviation of the group."""

_GRACE_S = 1.0

FailureReason = Literal["raised", "timed_out", "bad_value", "wrong_length"]
"""Why a completion got no value: the function `raised` or `timed_out`, it returned a
`bad_value` (None, NaN, infinite, huge, not a number), or it returned a sequence of the
`wrong_length` for a group."""


@dataclass(frozen=True, slots=True)
class NoValue:
    """Stands in place of a value for a completion that got none.

    Attributes:
        reason: why there is no value; see `FailureReason`.
        message: what happened, for people to read.
    """

    reason: FailureReason
    message: str


Value = float | NoValue


@dataclass(frozen=True, slots=True)
class CompletionsToScore:
    """What a reward function may know about the G completions of one problem.

    Attributes:
        problem: the problem as the environment posed it.
        answers: the texts of the completions; user functions know them by this name.
        infos: the info of the environment's `step` for each completion.
        truncated: for each completion, whether it was cut at the length limit.
        num_tokens: the length of each completion in tokens.
        columns: the values of the problem's row by the name of their column, those that are kept.
    """

    problem: str
    answers: Sequence[str]
    infos: Sequence[Mapping[str, Any]]
    truncated: Sequence[bool]
    num_tokens: Sequence[int]
    columns: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, function: RewardFunction) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield the first argument and the keywords of each call.

        Lists, infos and columns are copies, so a function may change them.
        """
        if function.batched:
            everything: dict[str, Any] = {
                "problem": self.problem,
                "infos": [dict(info) for info in self.infos],
                "truncated": list(self.truncated),
                "num_tokens": list(self.num_tokens),
            }
            keywords = {name: everything[name] for name in function.keywords}
            yield list(self.answers), keywords | self._columns(function)
            return
        for i, answer in enumerate(self.answers):
            everything = {
                "problem": self.problem,
                "info": dict(self.infos[i]),
                "truncated": self.truncated[i],
                "num_tokens": self.num_tokens[i],
            }
            keywords = {name: everything[name] for name in function.keywords}
            yield answer, keywords | self._columns(function)

    def _columns(self, function: RewardFunction) -> dict[str, Any]:
        """The columns that a function asks for; it has a default for those that are not there."""
        return {
            asked.keyword: copy.deepcopy(self.columns[asked.column])
            for asked in function.columns
            if asked.column in self.columns
        }


class RewardCalls:
    """Calls functions one after the other. Only one thread at a time may use it.

    Args:
        timeout_s: how long one function may take for one group, in seconds, unless the call says
            otherwise.
    """

    def __init__(self, timeout_s: float = 60.0) -> None:
        self.timeout_s = timeout_s
        self._hung: list[tuple[str, Callable[[], bool]]] = []  # its name, and whether it still runs
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None

    def call(
        self, function: RewardFunction, group: CompletionsToScore, timeout_s: float | None = None
    ) -> list[Value]:
        """Get one value for each completion.

        Args:
            function: the function.
            group: what it may know.
            timeout_s: how long it may take for the whole group, in seconds; None takes the time
                limit of this object. The values are there after about this time at the latest.

        Raises:
            RewardError: too many earlier calls still hang.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        self._refuse_to_pile_up(timeout_s)
        call = _Call(function, group)
        if function.is_async:
            self._call_in_loop(call, timeout_s)
        else:
            self._call_in_thread(call, timeout_s)
        late = NoValue("timed_out", f"took longer than reward_timeout_s={timeout_s:g}")
        return [late if outcome is None else outcome for outcome in call.outcomes()]

    def close(self) -> None:
        """End the event loop. Calls that were left behind end with the process."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop has ended by itself.
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop = self._loop_thread = None

    def _refuse_to_pile_up(self, timeout_s: float) -> None:
        self._hung = [(name, running) for name, running in self._hung if running()]
        if len(self._hung) >= MAX_HUNG:
            names = ", ".join(sorted({name for name, _ in self._hung}))
            raise RewardError(
                f"{len(self._hung)} calls of reward functions ({names}) did not end within "
                f"reward_timeout_s={timeout_s:g} and still run. Give the function a time "
                "limit of its own (for its request or its subprocess), or raise reward_timeout_s"
            )

    def _call_in_thread(self, call: _Call, timeout_s: float) -> None:
        thread = threading.Thread(
            target=call.run, name=f"reward function {call.function.name}", daemon=True
        )
        thread.start()
        thread.join(timeout_s)
        if thread.is_alive():
            call.abandoned.set()
            self._hung.append((call.function.name, thread.is_alive))

    def _call_in_loop(self, call: _Call, timeout_s: float) -> None:
        loop, thread = self._running_loop()
        grace_s = min(_GRACE_S, timeout_s)
        done = asyncio.run_coroutine_threadsafe(call.run_async(timeout_s, grace_s), loop)
        try:
            stubborn = done.result(timeout_s + 2 * grace_s)
        except TimeoutError:  # A coroutine blocks the loop, so leave it behind.
            call.abandoned.set()
            self.close()
            self._hung.append((call.function.name, thread.is_alive))
            return
        for task in stubborn:
            self._hung.append((call.function.name, partial(_is_running, task)))

    def _running_loop(self) -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
        if self._loop is None or self._loop_thread is None or not self._loop_thread.is_alive():
            self._loop = asyncio.new_event_loop()
            self._loop_thread = threading.Thread(
                target=_serve, args=(self._loop,), name="reward functions", daemon=True
            )
            self._loop_thread.start()
        return self._loop, self._loop_thread


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _is_running(task: asyncio.Task[None]) -> bool:
    return not task.done()


class _Call:
    """One call of a function for one group. It serves plain functions and coroutines alike."""

    def __init__(self, function: RewardFunction, group: CompletionsToScore) -> None:
        self.function = function
        self.abandoned = threading.Event()
        self._group = group
        self._outcomes: list[Value | None] = [None] * len(group.answers)

    def outcomes(self) -> list[Value | None]:
        """Copy the values, because a call that was left behind may still write."""
        return list(self._outcomes)

    def run(self) -> None:
        """Call a plain function."""
        for i, (first, keywords) in enumerate(self._group.arguments(self.function)):
            if self.abandoned.is_set():
                return
            try:
                self._keep(i, self.function.function(first, **keywords))
            except BaseException as error:  # noqa: BLE001 - a function may raise SystemExit, too
                self._fail(i, error)

    async def run_async(self, timeout_s: float, grace_s: float) -> set[asyncio.Task[None]]:
        """Call a coroutine function for all completions of the group at once.

        Args:
            timeout_s: the time after which the calls are cancelled, in seconds.
            grace_s: the time that cancelled calls have to end, in seconds.

        Returns:
            The calls that went on although they were cancelled.
        """
        calls = enumerate(self._group.arguments(self.function))
        tasks = [asyncio.ensure_future(self._await(i, first, more)) for i, (first, more) in calls]
        if not tasks:
            return set()
        _, late = await asyncio.wait(tasks, timeout=timeout_s)
        if not late:
            return set()
        self.abandoned.set()
        for task in late:
            task.cancel()
        _, stubborn = await asyncio.wait(late, timeout=grace_s)
        return stubborn

    async def _await(self, i: int, first: Any, keywords: dict[str, Any]) -> None:
        try:
            self._keep(i, await self.function.function(first, **keywords))
        except BaseException as error:  # noqa: BLE001 - SystemExit would end the loop
            if not self.abandoned.is_set():
                self._fail(i, error)

    def _keep(self, i: int, result: Any) -> None:
        """Read a result. This is part of the time limit, because reading can raise or hang."""
        if not self.function.batched:
            self._outcomes[i] = read_value(result)
            return
        self._outcomes[:] = read_values(result, len(self._outcomes))

    def _fail(self, i: int, error: BaseException) -> None:
        failure = NoValue("raised", _describe(error))
        if self.function.batched:
            self._outcomes[:] = [failure] * len(self._outcomes)
        else:
            self._outcomes[i] = failure


def read_value(value: Any) -> Value:
    """Read a number that a function returned: Python's, numpy's or a tensor of one element."""
    shown = _show(value)
    if not isinstance(value, (bool, int, float)) and hasattr(value, "item"):
        try:
            value = value.item()
        except (TypeError, ValueError, RuntimeError):
            return NoValue("bad_value", f"returned {shown}, more than one number")
    if not isinstance(value, (bool, int, float)):
        return NoValue("bad_value", f"returned {shown}, not a number")
    if not -LARGEST_VALUE <= value <= LARGEST_VALUE:  # NaN fails this test, too.
        return NoValue("bad_value", f"returned {shown}; use a number up to ±{LARGEST_VALUE:g}")
    return float(value)


def read_values(values: Any, count: int) -> list[Value]:
    """Read `count` numbers that a batched function returned."""
    try:
        length = None if isinstance(values, (str, bytes, Mapping, Set)) else len(values)
    except TypeError:  # It is a number, a generator or an array of no dimension.
        length = None
    if length is None:
        failure = NoValue("bad_value", f"returned {_show(values)}, not a sequence of numbers")
        return [failure] * count
    if length != count:
        return [
            NoValue("wrong_length", f"returned {length} values for {count} completions")
        ] * count
    outcomes = [read_value(value) for value in itertools.islice(iter(values), count)]
    missing = NoValue("wrong_length", f"returned {len(outcomes)} values for {count} completions")
    return outcomes + [missing] * (count - len(outcomes))


def _describe(error: BaseException) -> str:
    text = ""
    with contextlib.suppress(BaseException):
        text = str(error)
    return f"raised {type(error).__name__}: {text:.300}"


def _show(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except BaseException:  # noqa: BLE001 - a foreign `__repr__` may raise anything
        return f"a {type(value).__name__}"
