"""Import the user's reward functions by their path, and check them before training starts.

    def per_completion(answer: str, *, problem: str, info: dict, **more) -> float
    def per_group(answers: Sequence[str], *, problem: str, infos: Sequence[dict], **more)
        -> Sequence[float]

Both may be `async def`. The name of the first parameter tells which of the two a function is; what
it gets is the text of a whole completion, or the texts of all completions of a group. The other
parameters are passed by name, and only those that the function asks for. A parameter of another
name asks for the column of the data set with this name (`rewards.columns`).
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from rllib_dapo.errors import SettingError
from rllib_dapo.rewards.columns import AskedColumn, read_declared
from rllib_dapo.settings.general import LARGEST_WEIGHT

FORMAT = "format"
"""The name of the built-in component for the format."""

PER_ANSWER_KEYWORDS = ("problem", "info", "truncated", "num_tokens")
BATCHED_KEYWORDS = ("problem", "infos", "truncated", "num_tokens")

_SETTING = "reward_functions"
_KEYS = ("function", "weight", "name", "columns")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_TAKEN = (FORMAT, "score", "length")
_EXAMPLE = "def my_reward(answer, *, problem, info, **more): ..."


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """One of the user's reward functions.

    Attributes:
        name: the name under which its values are kept and logged.
        weight: the factor by which its values are multiplied; with 0 they are only logged.
        function: the callable itself.
        batched: whether it takes all completions of a group at once.
        is_async: whether calling it gives an awaitable.
        keywords: those of the offered keywords that it asks for.
        columns: the columns of the data set that it asks for.
    """

    name: str
    weight: float
    function: Callable[..., Any]
    batched: bool
    is_async: bool
    keywords: tuple[str, ...]
    columns: tuple[AskedColumn, ...] = ()


def load_reward_functions(entries: Sequence[Mapping[str, Any]]) -> tuple[RewardFunction, ...]:
    """Import and check the functions of the setting `reward_functions`.

    Args:
        entries: mappings with `function` (`package.module:name`), `weight` (default: 1),
            `name` (default: the function's own name) and `columns` (default: what the
            parameters of the function say).

    Raises:
        SettingError: an entry is malformed, cannot be imported or has an impossible signature.
    """
    names = reward_function_names(entries)
    return tuple(
        _load(entry, name, f"{_SETTING}[{i}]")
        for i, (entry, name) in enumerate(zip(entries, names, strict=True))
    )


def reward_function_names(entries: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Read the names of the functions, in order, without importing them.

    Raises:
        SettingError: an entry is malformed, or two entries have the same name.
    """
    names: list[str] = []
    for i, entry in enumerate(entries):
        where = f"{_SETTING}[{i}]"
        name = _name(entry, where)
        if name in names or name in _TAKEN:
            owner = f"{_SETTING}[{names.index(name)}]" if name in names else "a built-in component"
            _refuse(f"{where}.name", name, f"{owner} has this name; give it a `name` of its own")
        names.append(name)
    return tuple(names)


def check_weight(where: str, weight: float, setting: str) -> None:
    """Refuse a weight that would make rewards overflow.

    Raises:
        SettingError: the weight is not a number between − and + `LARGEST_WEIGHT`.
    """
    if not -LARGEST_WEIGHT <= weight <= LARGEST_WEIGHT:
        raise SettingError(
            f"{where}={weight!r}: use a finite number up to ±{LARGEST_WEIGHT:g}, such as 0.5",
            setting,
        )


def _name(entry: Any, where: str) -> str:
    if not isinstance(entry, Mapping):
        _refuse(where, entry, 'give a mapping such as {"function": "package.module:my_reward"}')
    for key in entry:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, n=1, cutoff=0.4)
            hint = f" (did you mean `{near[0]}`?)" if near else ""
            _refuse(
                f"{where}.{key}",
                entry[key],
                f"an entry has no such key{hint}; its keys are {', '.join(_KEYS)}",
            )
    path = entry.get("function")
    if not isinstance(path, str) or not all(path.partition(":")):
        _refuse(f"{where}.function", path, "give an import path, `package.module:my_reward`")
    name = entry.get("name")
    name = re.split(r"[:.]", str(path))[-1] if name is None else name
    if not isinstance(name, str) or not _NAME.match(name):
        _refuse(f"{where}.name", name, "use letters, digits, `_`, `-` and `.`, a letter first")
    return str(name)


def _load(entry: Mapping[str, Any], name: str, where: str) -> RewardFunction:
    weight = entry.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
        _refuse(f"{where}.weight", weight, "use a number, such as 0.5")
    check_weight(f"{where}.weight", weight, _SETTING)
    path, setting = str(entry["function"]), f"{where}.function"
    function = _import(path, setting)
    batched, asked, takes_any = _read_signature(function, path, setting)
    offered = BATCHED_KEYWORDS if batched else PER_ANSWER_KEYWORDS
    declared = read_declared(entry.get("columns"), f"{where}.columns")
    for keyword in declared:
        taken = keyword in ("answer", "answers", *offered)
        if taken or not (takes_any or keyword in asked):
            why = "has a meaning of its own" if taken else "is no parameter of the function"
            near = [] if taken else difflib.get_close_matches(keyword, asked, n=1, cutoff=0.5)
            key = near[0] if near else "another_name"
            remedy = f"write {{{key}: {declared[keyword]}}}, with a parameter of that name"
            _refuse(f"{where}.columns", declared, f"the keyword {keyword!r} {why}; {remedy}")
    by_signature = {name: name for name in asked if name not in offered}
    columns = tuple(
        AskedColumn(keyword, column, keyword in declared or asked[keyword])
        for keyword, column in {**by_signature, **declared}.items()
    )
    keywords = tuple(keyword for keyword in offered if takes_any or keyword in asked)
    is_async = _is_async(function)
    return RewardFunction(name, float(weight), function, batched, is_async, keywords, columns)


def _import(path: str, where: str) -> Callable[..., Any]:
    module_name, _, attributes = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # noqa: BLE001 - a foreign module may raise anything
        _refuse(
            where,
            path,
            f"{module_name!r} cannot be imported ({type(error).__name__}: {error}). Install it, or "
            "put its folder on PYTHONPATH, here and on every machine that samples",
            error,
        )
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            near = difflib.get_close_matches(attribute, dir(found), n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]!r}?" if near else "; define it there"
            _refuse(where, path, f"{module_name!r} has no {attribute!r}{hint}")
        found = getattr(found, attribute)
    if inspect.isclass(found):
        _refuse(where, path, "this is a class; name a function, or an instance with `__call__`")
    if not callable(found):
        _refuse(where, path, f"this is a {type(found).__name__}, not a function; {_EXAMPLE}")
    function: Callable[..., Any] = found
    return function


def _read_signature(
    function: Callable[..., Any], path: str, where: str
) -> tuple[bool, dict[str, bool], bool]:
    """Find out how a function can be called.

    Returns:
        Whether it is batched; its further parameters that can be passed by name, each with
        whether it must be; and whether it takes any keyword.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        _refuse(where, path, f"its signature cannot be read ({error}); wrap it: {_EXAMPLE}", error)
    kinds = inspect.Parameter
    positional = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    first = parameters[0] if parameters else None
    if first is None or first.kind not in positional or first.name not in ("answer", "answers"):
        _refuse(
            where,
            path,
            "its first parameter must be called `answer` (it is then called for each completion) "
            f"or `answers` (it is then called once for a group); {_EXAMPLE}",
        )
    batched = first.name == "answers"
    offered = BATCHED_KEYWORDS if batched else PER_ANSWER_KEYWORDS
    of_the_other_form = set(PER_ANSWER_KEYWORDS + BATCHED_KEYWORDS) - set(offered)
    takes_any = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
    asked: dict[str, bool] = {}
    for parameter in parameters[1:]:
        if parameter.kind in (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL):
            continue
        required = parameter.default is kinds.empty
        by_name = parameter.kind is not kinds.POSITIONAL_ONLY
        if required and (not by_name or parameter.name in of_the_other_form):
            _refuse(
                where,
                path,
                f"its parameter {parameter.name!r} would get no value; by name it can get "
                f"{', '.join(offered)} and columns of the data set; give every other parameter a "
                "default",
            )
        if by_name:
            asked[parameter.name] = required
    return batched, asked, takes_any


def _is_async(function: Callable[..., Any]) -> bool:
    if inspect.iscoroutinefunction(function):
        return True
    return inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _refuse(where: str, value: object, remedy: str, cause: Exception | None = None) -> NoReturn:
    raise SettingError(f"{where}={value!r:.120}: {remedy}", _SETTING) from cause
