"""YAML that remembers the line of every key and item.

Only plain data is built (null, true/false, numbers, text, lists, mappings). Tags that build
other objects are refused, and so are duplicate keys, of which PyYAML silently keeps the last.
`1e-4` is a number here, although YAML 1.1 reads it as text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rllib_dapo.errors import ExperimentFileError

KeyPath = tuple[str | int, ...]

# Aliases let a file of a few lines stand for billions of values; no experiment needs more.
MAX_NODES = 50_000

_NULL, _BOOL = "tag:yaml.org,2002:null", "tag:yaml.org,2002:bool"
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_STR = "tag:yaml.org,2002:str"

_NUMBER = re.compile(
    r"""[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
      |\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
      |[0-9][0-9_]*[eE][-+]?[0-9]+
      |\.(?:inf|Inf|INF))
      |\.(?:nan|NaN|NAN)""",
    re.VERBOSE,
)
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, except that `1e-4` is a number and that `1:30` is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag not in (_INT, _FLOAT)]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _first in "-+.0123456789":
    # PyYAML calls `match`, which ignores what follows unless the pattern contains the end.
    _Loader.yaml_implicit_resolvers[_first] = [
        (_FLOAT, re.compile(rf"(?:{_NUMBER.pattern})\Z", re.VERBOSE)),
        (_INT, re.compile(rf"(?:{_INTEGER.pattern})\Z")),
    ]


@dataclass(frozen=True)
class Document:
    """The data of one file, and the line (from 1) of each key and item.

    Example: `a: {b: 1}` gives data `{"a": {"b": 1}}` and lines `{(): 1, ("a",): 1,
    ("a", "b"): 1}`.
    """

    data: Any
    lines: dict[KeyPath, int]

    def line(self, path: KeyPath) -> int:
        """The line of `path`, or of the innermost part of it that is in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


class _Builder:
    """Turns YAML nodes into data and notes their lines."""

    def __init__(self, loader: _Loader, source: str) -> None:
        self.loader, self.source = loader, source
        self.lines: dict[KeyPath, int] = {}
        self.open: set[int] = set()
        self.nodes = 0

    def fail(self, node: yaml.Node, message: str) -> ExperimentFileError:
        return ExperimentFileError(f"{self.source}:{node.start_mark.line + 1}: {message}")

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise self.fail(node, f"more than {MAX_NODES} values; use fewer aliases (*name)")
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node)
        if id(node) in self.open:
            raise self.fail(node, "an alias (*name) that contains itself; write the value out")
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self.mapping(node, path)
            if node.tag != "tag:yaml.org,2002:seq":
                raise self.fail(node, f"the tag {node.tag!r} is not allowed; remove it")
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        finally:
            self.open.discard(id(node))

    def scalar(self, node: yaml.ScalarNode) -> Any:
        if node.tag not in (_NULL, _BOOL, _INT, _FLOAT, _STR):
            raise self.fail(
                node,
                f"{node.value!r} would be read as {node.tag!r}; put it in quotes if it is text, "
                "or remove the tag",
            )
        try:
            value = self.loader.construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError) as error:
            raise self.fail(
                node, f"{node.value!r} is not a {node.tag.rpartition(':')[2]}; put it in quotes"
            ) from error
        if isinstance(value, int) and abs(value) >= 2**63:
            raise self.fail(node, "a whole number beyond 64 bits; put it in quotes")
        return value

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str | int, Any]:
        if node.tag != "tag:yaml.org,2002:map":
            raise self.fail(node, f"the tag {node.tag!r} is not allowed; remove it")
        self.check_duplicates(node)
        self.flatten(node)
        data: dict[str | int, Any] = {}
        for key_node, value_node in node.value:
            key = self.key(key_node)
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            # The keys that `<<: *base` merges come first, so that the mapping's own keys win.
            data[key] = self.build(value_node, (*path, key))
        return data

    def flatten(self, node: yaml.MappingNode) -> None:
        try:
            self.loader.flatten_mapping(node)
        except yaml.YAMLError as error:
            raise self.fail(node, "`<<:` merges mappings only; give it *name") from error

    def check_duplicates(self, node: yaml.MappingNode) -> None:
        first: dict[str | int, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.key(key_node)
            line = key_node.start_mark.line + 1
            if key in first:
                raise self.fail(
                    key_node, f"{key!r} is given twice (first in line {first[key]}); keep one"
                )
            first[key] = line

    def key(self, node: yaml.Node) -> str | int:
        key = self.scalar(node) if isinstance(node, yaml.ScalarNode) else None
        if isinstance(key, bool) or not isinstance(key, str | int):
            found = node.value if isinstance(node, yaml.ScalarNode) else "a list or mapping"
            raise self.fail(node, f"a key must be text, not {found!r}; put it in quotes")
        return key


def parse(text: str, source: str) -> Document:
    """Read one YAML document.

    Args:
        text: the YAML.
        source: its name in messages, usually that of the file.

    Raises:
        ExperimentFileError: the text is wrong; the message gives `source`, the line, what was
            found there and the remedy.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return Document(None, {(): 1})
        builder = _Builder(loader, source)
        return Document(builder.build(node, ()), builder.lines)
    except yaml.YAMLError as error:
        raise ExperimentFileError(_describe(error, text, source)) from error
    except RecursionError as error:
        raise ExperimentFileError(f"{source}:1: nested too deeply; use fewer levels") from error


def parse_file(path: Path) -> Document:
    """Read one YAML file.

    Raises:
        ExperimentFileError: the file cannot be read, is not UTF-8, or `parse` refuses it.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ExperimentFileError(
            f"{path}:1: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from error
    except OSError as error:
        raise ExperimentFileError(f"{path}: {error.strerror}; check the file's name") from error
    return parse(text, str(path))


def _describe(error: yaml.YAMLError, text: str, source: str) -> str:
    """The line at which YAML stopped, and the usual reason."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        reason = getattr(error, "reason", str(error))
        position = getattr(error, "position", 0)
        line = text.count("\n", 0, position) + 1
        return f"{source}:{line}: {reason}; remove the character"
    lines = text.splitlines()
    line_text = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in line_text[: len(line_text) - len(line_text.lstrip())]:
        return f"{source}:{mark.line + 1}: a tab in the indentation; use spaces"
    problem = getattr(error, "problem", None) or "not YAML"
    return (
        f"{source}:{mark.line + 1}: {problem} at {line_text.strip()[:60]!r}; check indentation, "
        "colons and quotes"
    )
