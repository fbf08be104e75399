"""When Tune stops a trial: metric -> value to reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NoReturn

from rllib_dapo.metrics import renamed

# Counters that every algorithm reports; a slip in one of them is caught.
_STOP_KEYS = ("training_iteration", "time_total_s", "num_env_steps_sampled_lifetime")


def flat_stop(
    stop: Mapping[Any, Any], fail: Callable[[tuple[Any, ...], str], NoReturn]
) -> dict[str, float]:
    """Stop criteria with nested metrics as `a/b`, the form of Tune.

    Calls `fail(path, message)`, which raises, for anything that is not a number and for what
    looks like a misspelt counter: Tune would run for ever.
    """
    flat: dict[str, float] = {}
    for path, value in _leaves(stop):
        name = "/".join(map(str, path))
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            fail(path, f"stop at `{name}`: {value!r} is not a number")
        if present := renamed(name):
            fail(path, f"the metric `{name}` is now called `{present}`; write that name")
        near = get_close_matches(name, _STOP_KEYS, n=1, cutoff=0.9)
        if near and name not in _STOP_KEYS:
            fail(path, f"no result is called `{name}`; did you mean `{near[0]}`?")
        flat[name] = value
    return flat


def _leaves(tree: Mapping[Any, Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value
