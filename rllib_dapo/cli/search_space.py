"""Values of a config that Tune varies, written as plain data.

`{grid_search: [a, b]}` is Tune's own form and stays as it is. A random value is written as the
name of a Tune function with its arguments, `{tune.loguniform: [1e-7, 1e-5]}`. The dot keeps
this key apart from the name of any setting. Nothing in a file is evaluated as code, as RLlib's
old command did with the text of `{eval: ...}`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from rllib_dapo.cli.yaml_lines import KeyPath
from rllib_dapo.errors import SettingError

GRID = "grid_search"
_DOMAIN = "domain"  # an object that tune.uniform(...) made in a Python experiment
_FUNCTION = "function"  # one that tune.sample_from(...) made: a function of the other values

# Name -> number of arguments, which are in Tune's order; None: a list of any length.
_SAMPLERS = {
    "tune.uniform": 2,
    "tune.quniform": 3,
    "tune.loguniform": 2,
    "tune.qloguniform": 3,
    "tune.randint": 2,
    "tune.qrandint": 3,
    "tune.lograndint": 2,
    "tune.qlograndint": 3,
    "tune.choice": None,
}

# With more combinations than this, each value is checked once instead of every combination.
MAX_VARIANTS = 64


@dataclass(frozen=True)
class Varied:
    """One varied value.

    Args:
        kind: `grid_search`, the name of a sampler, or `domain` for an object of Tune.
        arguments: the values of the grid, the arguments of the sampler, or the object.
    """

    kind: str
    arguments: tuple[Any, ...]

    def examples(self) -> tuple[Any, ...]:
        """Values to check before anything runs: all of a list, or both ends of a range."""
        if self.kind in (_DOMAIN, _FUNCTION):
            return (self.arguments[0].sample(),)
        if self.kind in (GRID, "tune.choice"):
            return self.arguments
        low, high = self.arguments[:2]
        exclusive = self.kind in ("tune.randint", "tune.lograndint")
        return (low, high - 1 if exclusive else high)

    def to_tune(self) -> Any:
        """The value in Tune's own form."""
        if self.kind in (_DOMAIN, _FUNCTION):
            return self.arguments[0]
        if self.kind == GRID:
            return {GRID: list(self.arguments)}
        from ray import tune

        function = getattr(tune, self.kind.removeprefix("tune."))
        if self.kind == "tune.choice":
            return function(list(self.arguments))
        return function(*self.arguments)


def varied(value: Any, name: str) -> Varied | None:
    """Read `value` as a varied value.

    Args:
        value: any value of a config.
        name: the dotted name of the setting, for messages.

    Returns:
        The varied value, or None if `value` is an ordinary one.

    Raises:
        SettingError: `value` looks like a varied value but is wrong, or is text to evaluate.
    """
    if type(value).__module__ == "ray.tune.search.sample":
        function = type(value).__name__ == "Function"
        return Varied(_FUNCTION if function else _DOMAIN, (value,))
    if not isinstance(value, dict):
        return None
    kinds = [k for k in value if k in (GRID, "eval") or str(k).startswith("tune.")]
    if not kinds or (kinds == ["eval"] and len(value) > 1):
        return None
    kind = str(kinds[0])
    if len(value) > 1:
        raise SettingError(f"`{name}`: {kind} stands alone; remove the other keys", name)
    if kind == "eval":
        raise SettingError(
            f"`{name}`: {{eval: ...}} would run text as code and is not supported; write "
            "{tune.uniform: [low, high]}, {tune.choice: [...]} or {grid_search: [...]}",
            name,
        )
    if kind == "tune.sample_from":
        raise SettingError(
            f"`{name}`: {{tune.sample_from: ...}} would run text as code; write the experiment as "
            "a .py file, where `tune.sample_from(lambda config: ...)` is possible",
            name,
        )
    if kind != GRID and kind not in _SAMPLERS:
        near = get_close_matches(kind, [GRID, *_SAMPLERS], n=1)
        hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(_SAMPLERS)
        raise SettingError(f"`{name}`: unknown {kind}; {hint}", name)
    return Varied(kind, _arguments(kind, value[kind], name))


def _arguments(kind: str, arguments: Any, name: str) -> tuple[Any, ...]:
    """Check the arguments of a grid or sampler."""
    if not isinstance(arguments, Sequence) or isinstance(arguments, str) or not arguments:
        raise SettingError(f"`{name}`: {kind} takes a list of values, not {arguments!r}", name)
    count = _SAMPLERS.get(kind)
    if count is None:
        return tuple(arguments)
    if len(arguments) != count or not all(
        isinstance(a, int | float) and not isinstance(a, bool) and math.isfinite(a)
        for a in arguments
    ):
        raise SettingError(f"`{name}`: {kind} takes {count} numbers, not {list(arguments)!r}", name)
    low, high = arguments[:2]
    if low >= high or ("log" in kind and low <= 0):
        above = "0 < low < high" if "log" in kind else "low < high"
        raise SettingError(f"`{name}`: {kind} needs {above}, not {low}, {high}", name)
    return tuple(arguments)


def find(config: Any, path: KeyPath = ()) -> dict[KeyPath, Varied]:
    """Every varied value of a config, with the path to it.

    Raises:
        SettingError: for the same reasons as `varied`.
    """
    value = varied(config, ".".join(map(str, path)) or "config")
    if value is not None:
        return {path: value}
    found: dict[KeyPath, Varied] = {}
    if isinstance(config, dict):
        for key, item in config.items():
            found |= find(item, (*path, key))
    elif type(config) in (list, tuple):
        for i, item in enumerate(config):
            found |= find(item, (*path, i))
    return found


def replaced(config: Any, values: dict[KeyPath, Any], path: KeyPath = ()) -> Any:
    """A copy of `config` in which the value at each path of `values` is replaced."""
    if path in values:
        return values[path]
    if isinstance(config, dict):
        return {k: replaced(v, values, (*path, k)) for k, v in config.items()}
    if type(config) in (list, tuple):
        return type(config)([replaced(v, values, (*path, i)) for i, v in enumerate(config)])
    return config


def to_tune(config: dict[str, Any]) -> dict[str, Any]:
    """The parameter space for `tune.Tuner`."""
    space: dict[str, Any] = replaced(
        config, {path: value.to_tune() for path, value in find(config).items()}
    )
    return space


def variants(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Configs to check: all combinations, or each value once if there are too many.

    Functions of other values (`tune.sample_from`) are called with each combination. A
    combination for which a function cannot be called is left out: the trial checks it.
    """
    found = find(config)
    functions = {path: v.arguments[0] for path, v in found.items() if v.kind == _FUNCTION}
    examples = {path: v.examples() for path, v in found.items() if path not in functions}
    for values in _combinations(examples):
        complete = _called(replaced(config, values), functions)
        if complete is not None:
            yield complete


def known_part(config: dict[str, Any]) -> dict[str, Any]:
    """A config without the values that only Tune can know: the first of each other value."""
    found = find(config)
    first = {path: v.examples()[0] for path, v in found.items() if v.kind != _FUNCTION}
    kept = replaced(config, first)
    unknown = {path[0] for path, v in found.items() if v.kind == _FUNCTION}
    return {key: value for key, value in kept.items() if key not in unknown}


def _combinations(examples: dict[KeyPath, tuple[Any, ...]]) -> Iterator[dict[KeyPath, Any]]:
    if math.prod(map(len, examples.values())) <= MAX_VARIANTS:
        for combination in itertools.product(*examples.values()):
            yield dict(zip(examples, combination, strict=True))
        return
    first = {path: values[0] for path, values in examples.items()}
    yield first
    for path, values in examples.items():
        for value in values[1:]:
            yield {**first, path: value}


def _called(config: dict[str, Any], functions: dict[KeyPath, Any]) -> dict[str, Any] | None:
    """`config` with the values of its functions; None where one of them cannot be known."""
    from ray.tune.search.variant_generator import _UnresolvedAccessGuard

    waiting = dict(functions)
    while waiting:
        known = _UnresolvedAccessGuard(config)  # Tune hands the functions the same.
        values = {}
        for path, function in waiting.items():
            # The function is the user's own and may raise anything, for instance because it needs
            # the value of another function, which is called first then.
            with suppress(Exception):
                values[path] = function.sample(config=known)
        if not values:
            return None
        config = replaced(config, values)
        waiting = {path: f for path, f in waiting.items() if path not in values}
    return config
