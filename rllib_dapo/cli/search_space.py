"""Values of a config that Tune is to vary, in plain data.

`{grid_search: [a, b]}` is Tune's own form and stays as it is. Random values are written as
the Tune function with its arguments, `{tune.loguniform: [1e-7, 1e-5]}`: the dot keeps the
key apart from every setting's name, and nothing in a file is ever evaluated as code (the
old command ran the text of `{eval: ...}`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from rllib_dapo.errors import SettingError

GRID = "grid_search"
KeyPath = tuple[str | int, ...]
_DOMAIN = "domain"  # an object made by tune.uniform(...) in a Python experiment

# Name -> number of arguments; the order is Tune's.
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

# Above this many combinations every value is still tried, but one at a time.
MAX_VARIANTS = 64


@dataclass(frozen=True)
class Varied:
    """One varied value.

    Args:
        kind: `grid_search`, one of the samplers, or a Tune object as it is.
        arguments: the grid's values, or the sampler's arguments.
    """

    kind: str
    arguments: tuple[Any, ...]

    def examples(self) -> tuple[Any, ...]:
        """Values to check beforehand: all of a list, both ends of a range."""
        if self.kind == _DOMAIN:
            return (self.arguments[0].sample(),)
        if self.kind in (GRID, "tune.choice"):
            return self.arguments
        low, high = self.arguments[:2]
        # Tune's randint and lograndint leave the upper bound out.
        return (low, high - 1 if self.kind.endswith(".randint") else high)

    def to_tune(self) -> Any:
        """The object Tune understands."""
        if self.kind == _DOMAIN:
            return self.arguments[0]
        if self.kind == GRID:
            return {GRID: list(self.arguments)}
        from ray import tune

        function = getattr(tune, self.kind.removeprefix("tune."))
        if self.kind == "tune.choice":
            return function(list(self.arguments))
        return function(*self.arguments)


def varied(value: Any, name: str) -> Varied | None:
    """Read `value` as a varied value; None if it is an ordinary one.

    Args:
        value: any value of a config.
        name: the setting's dotted name, for messages.

    Raises:
        SettingError: it is meant as one but written wrongly, or is code to evaluate.
    """
    if type(value).__module__ == "ray.tune.search.sample":
        return Varied(_DOMAIN, (value,))
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
    if kind != GRID and kind not in _SAMPLERS:
        near = get_close_matches(kind, [GRID, *_SAMPLERS], n=1)
        hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(_SAMPLERS)
        raise SettingError(f"`{name}`: unknown {kind}; {hint}", name)
    return Varied(kind, _arguments(kind, value[kind], name))


def _arguments(kind: str, arguments: Any, name: str) -> tuple[Any, ...]:
    """The checked arguments of a grid or sampler."""
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
    """Every varied value of a config with the path to it.

    Raises:
        SettingError: see `varied`.
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
    """A copy of `config` with what stands at each path replaced."""
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
    """Concrete configs to check: all combinations, or each value once if those are many."""
    found = find(config)
    examples = {path: value.examples() for path, value in found.items()}
    if math.prod(map(len, examples.values())) <= MAX_VARIANTS:
        for combination in itertools.product(*examples.values()):
            yield replaced(config, dict(zip(examples, combination, strict=True)))
        return
    first = {path: values[0] for path, values in examples.items()}
    yield replaced(config, first)
    for path, values in examples.items():
        for value in values[1:]:
            yield replaced(config, {**first, path: value})
