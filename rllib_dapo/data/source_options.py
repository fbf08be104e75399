"""Read the setting `dataset`: one location, or a list of sources with their weights."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from numbers import Integral, Real
from pathlib import Path
from typing import Any, get_args

from rllib_dapo.data.load_report import OnBadRow
from rllib_dapo.data.readers import SUFFIXES
from rllib_dapo.errors import SettingError


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How one source is read. All attributes but the last two are as in `load.load_problems`.

    Attributes:
        path: a file, a folder or an id on the hub.
        problem_key: column of the problem.
        answer_key: column of the ground truth.
        split: which split of a folder or of a data set on the hub.
        subset: which configuration of a data set on the hub.
        deduplicate: keep only the first row of each problem.
        limit: use only the first `limit` problems.
        problem_template: makes the problem out of several columns.
        on_bad_row: `error` or `skip`.
        weight: its share of the problems posed, relative to the weights of the other sources.
        name: what metrics call it; None for the last part of its path.
    """

    path: str
    problem_key: str | None = None
    answer_key: str | None = None
    split: str | None = None
    subset: str | None = None
    deduplicate: bool = False
    limit: int | None = None
    problem_template: str | None = None
    on_bad_row: OnBadRow = "error"
    weight: Fraction = Fraction(1)
    name: str | None = None

    @property
    def reading(self) -> dict[str, Any]:
        """The arguments of `load_problems` other than the path."""
        options = asdict(self)
        return {k: v for k, v in options.items() if k not in ("path", "weight", "name")}


def read_sources(
    dataset: str | Path | Sequence[str | Mapping[str, Any]], defaults: Mapping[str, Any]
) -> tuple[SourceOptions, ...]:
    """Read the setting `dataset`.

    Args:
        dataset: a location, or a list. An element of the list is a location, or a mapping
            with `path` and those attributes of `SourceOptions` that differ from the defaults.
        defaults: the options of a source that does not set them itself.

    Raises:
        SettingError: an option is unknown or impossible.
    """
    if isinstance(dataset, str | Path):
        return (_read_source({"path": dataset}, defaults, "dataset"),)
    if not isinstance(dataset, Sequence) or not dataset:
        raise SettingError(
            f"dataset={dataset!r:.80}: use a path, an id on the hub, or a list of"
            " {path: …, weight: …}",
            "dataset",
        )
    sources = []
    for number, entry in enumerate(dataset):
        setting = f"dataset[{number}]"
        given = {"path": entry} if isinstance(entry, str | Path) else entry
        if not isinstance(given, Mapping):
            raise SettingError(
                f"{setting}={entry!r:.80}: use a path, or a mapping with path and weight", setting
            )
        sources.append(_read_source(given, defaults, setting))
    return tuple(sources)


def source_names(sources: Sequence[SourceOptions]) -> tuple[str, ...]:
    """What each source is called: its name, or else the last part of its path.

    Where two of these are equal, the whole path is used.

    Raises:
        SettingError: two sources still have the same name.
    """
    names = [source.name or _short(source.path) for source in sources]
    counts = Counter(names)
    names = [
        source.path if counts[name] > 1 and source.name is None else name
        for source, name in zip(sources, names, strict=True)
    ]
    (name, count), *_ = Counter(names).most_common(1)
    if count > 1:
        raise SettingError(
            f"dataset: {count} sources are called {name!r}; give each a name of its own (name: …)",
            "dataset",
        )
    return tuple(names)


def _short(path: str) -> str:
    last = Path(path)
    return (last.stem if last.suffix.lower() in SUFFIXES else last.name) or path


def _read_source(
    given: Mapping[str, Any], defaults: Mapping[str, Any], setting: str
) -> SourceOptions:
    known = [field.name for field in fields(SourceOptions)]
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise SettingError(
                f"{setting}.{key}: a source has no such option; {hint}It has {', '.join(known)}",
                f"{setting}.{key}",
            )
    path = given.get("path")
    if not isinstance(path, str | Path) or not str(path).strip():
        raise SettingError(
            f"{setting}.path={path!r:.80}: name a file, a folder or an id on the hub",
            f"{setting}.path",
        )
    options = {**defaults, **given, "path": str(path)}
    options["weight"] = _read_weight(given.get("weight", 1), f"{setting}.weight")
    inside = "" if setting == "dataset" else setting + "."
    limit = options.get("limit")
    if limit is not None and (
        isinstance(limit, bool) or not isinstance(limit, Integral) or limit < 1
    ):
        raise SettingError(f"{inside}limit={limit!r}: use 1 or more problems", f"{inside}limit")
    for key in ("problem_key", "answer_key", "split", "subset", "name", "problem_template"):
        value = options.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise SettingError(f"{inside}{key}={value!r:.80}: use a text", f"{inside}{key}")
    policy = options.get("on_bad_row", "error")
    if policy not in get_args(OnBadRow):
        raise SettingError(
            f"{inside}on_bad_row={policy!r:.80}: use error or skip", f"{inside}on_bad_row"
        )
    if not isinstance(options.get("deduplicate", False), bool):
        raise SettingError(
            f"{inside}deduplicate={options['deduplicate']!r:.80}: use true or false",
            f"{inside}deduplicate",
        )
    return SourceOptions(**options)


def _read_weight(weight: Any, setting: str) -> Fraction:
    """The weight exactly as it was written: 0.1 is one tenth."""
    is_number = isinstance(weight, Real) and not isinstance(weight, bool)
    if not is_number or not math.isfinite(weight) or weight <= 0:
        raise SettingError(
            f"{setting}={weight!r:.80}: use a number above 0; leave out a source that you do"
            " not want",
            setting,
        )
    return Fraction(str(weight))
