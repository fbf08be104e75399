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
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from rllib_dapo.cli.yaml_lines import KeyPath
from rllib_dapo.errors import SettingError

GRID = "grid_search"
_DOMAIN = "domain"  # an object that tune.uniform(...) made in a Python experiment

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
        if self.kind == _DOMAIN:
            return (self.arguments[0].sample(),)
        if self.kind in (GRID, "tune.choice"):
            return self.arguments
        low, high = self.arguments[:2]
        exclusive = self.kind in ("tune.randint", "tune.lograndint")
        return (low, high - 1 if exclusive else high)

    def to_tune(self) -> Any:
        """The value in Tune's own form."""
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
    """Configs to check: all combinations, or each value once if there are too many."""
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
