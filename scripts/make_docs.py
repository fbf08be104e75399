"""Write the tables of docs/ that are made from the code: settings.md and metrics.md.

python scripts/make_docs.py            write them
python scripts/make_docs.py --check    fail if they are not up to date
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt

from rllib_dapo import metrics
from rllib_dapo.settings.names import SETTING_CLASSES, setting_kinds, written_name
from rllib_dapo.settings.run import RLlibSettings, RLlibTrainingSettings

DOCS = Path(__file__).parent.parent / "docs"

METRICS_HEAD = """# Metrics

Made from `rllib_dapo/metrics.py`. Keys are paths in the result of an iteration
(`result["env_runners"]["accuracy"]`, `stop: {evaluation/accuracy: 0.95}`); TensorBoard shows
them under `ray/tune/`. RLlib adds its own (`timers`, `perf`, counters of trained steps).

"""

SETTINGS_HEAD = """# Settings

Made from `rllib_dapo/settings/`. Settings are keys of `config:` in a YAML file, where None is
written `null`, and arguments of `DAPOConfig().training(…)`.

"""

RLLIB_HEAD = """
## RLlib's settings

RLlib's own settings keep their names, and the methods of `AlgorithmConfig` that set them. DAPO
reads the following ones; their defaults are DAPO's.

"""

NUMBERS = {float: "number", int: "whole number"}
OTHERS = {bool: "true or false", str: "text", dict: "mapping", Sequence: "list", Any: "any"}
BOUNDS = {Gt: "above", Ge: "from", Lt: "below", Le: "up to"}


def metrics_page() -> str:
    """docs/metrics.md."""
    return METRICS_HEAD + metrics.as_markdown()


def settings_page() -> str:
    """docs/settings.md."""
    rllib = (RLlibTrainingSettings, RLlibSettings)
    return SETTINGS_HEAD + _table(SETTING_CLASSES) + RLLIB_HEAD + _table(rllib)


def _table(kinds: Sequence[type]) -> str:
    """One row for each setting that these classes define."""
    rows = ["| setting | value | default | meaning |", "| --- | --- | --- | --- |"]
    for kind in kinds:
        meanings = docstrings(kind)
        defaults = {field.name: field for field in fields(kind)}
        for name in kind.__annotations__:
            field = defaults[name]
            default = field.default if field.default_factory is MISSING else field.default_factory()
            value = describe(setting_kinds()[name]).replace("|", "\\|")
            meaning = meanings[name].replace("|", "\\|")  # a bare one would end the cell
            rows.append(f"| `{written_name(name)}` | {value} | `{default!r}` | {meaning} |")
    return "\n".join(rows) + "\n"


def docstrings(kind: type) -> dict[str, str]:
    """The text below each field that a class defines, on one line."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)  # noqa: S101 - it is the source of a class
    return {
        ast.unparse(field.target): " ".join(str(ast.literal_eval(text.value)).split())
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def describe(kind: Any) -> str:
    """Which values a setting of this type takes: `number above 0 below 1 or None`."""
    bounds: list[Any] = []
    if get_origin(kind) is Annotated:
        kind, *bounds = get_args(kind)
    if get_origin(kind) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        kinds = [part for part in get_args(kind) if part is not NoneType]
        parts = [describe(part) for part in kinds]
        parts[0] += _bounds(bounds)
        return " or ".join([*parts, *(["None"] if len(kinds) < len(get_args(kind)) else [])])
    return (NUMBERS | OTHERS)[get_origin(kind) or kind] + _bounds(bounds)


def _bounds(metadata: list[Any]) -> str:
    """The bounds in words: ` above 0 below 1`."""
    given = {type(bound): getattr(bound, type(bound).__name__.lower(), None) for bound in metadata}
    if Ge in given and given[Ge] == given.get(Le):
        return f", {given[Ge]} only"
    return "".join(f" {word} {given[kind]:g}" for kind, word in BOUNDS.items() if kind in given)


def main() -> None:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for name, text in {"metrics.md": metrics_page(), "settings.md": settings_page()}.items():
        path = DOCS / name
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            stale.append(str(path))
        elif not check:
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.exit(f"{', '.join(stale)}: not up to date; run `python scripts/make_docs.py`")


if __name__ == "__main__":
    main()
