"""The rooms of the package: one way down, no circle, nothing that is too large to read."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

PACKAGE = Path(__file__).parents[1] / "rllib_dapo"
LOOSE = {"__init__", "metrics", "types", "errors"}
ROOMS = {
    "cli", "algorithm", "rollout", "learner", "data", "model", "rewards", "losses", "settings",
}  # fmt: skip
WITHOUT_RAY = ["data", "model", "rewards", "losses", "settings"]


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("rllib_dapo", cache_dir=None)


def files() -> Iterator[Path]:
    """The Python files of the package, those of `envs/` included, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "rllib_dapo", "envs"],
        cwd=PACKAGE.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    paths = (PACKAGE.parent / line for line in listed.stdout.splitlines())
    return (path for path in paths if path.suffix == ".py" and path.exists())


def folder(module: str) -> str:
    """The folder of a module, or the module itself where it lies loose in the package."""
    path = PACKAGE.parent / module.replace(".", "/")
    return module if path.is_dir() or module.count(".") == 1 else module.rpartition(".")[0]


def imports(graph: grimp.ImportGraph) -> Iterator[tuple[str, str]]:
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            yield importer, imported


def circle(edges: set[tuple[str, str]]) -> list[str]:
    """A circle in a graph; empty if there is none."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for start, end in edges:
        sorter.add(start, end)
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_the_package_holds_its_rooms_and_four_files():
    entries = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert entries == ROOMS | {"envs", "tuned_examples"}
    assert {path.stem for path in PACKAGE.glob("*.py")} == LOOSE


def test_no_circle_of_imports_lazy_and_annotation_only_ones_included(graph):
    # `rllib_dapo/__init__.py` hands names on, lazily; nothing below imports it.
    edges = {(a, b) for a, b in imports(graph) if a != "rllib_dapo"}
    assert "rllib_dapo" not in {b for _, b in edges}
    assert circle(edges) == []


def test_no_circle_of_folders_and_few_arrows_between_them(graph):
    arrows = {
        (folder(a), folder(b))
        for a, b in imports(graph)
        if folder(a) != folder(b) and a != "rllib_dapo"
    }
    assert circle(arrows) == []
    assert len(arrows) <= 70


@pytest.mark.parametrize("room", WITHOUT_RAY)
def test_the_lower_rooms_know_neither_ray_nor_vllm(room):
    for path in (PACKAGE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            assert not {name.partition(".")[0] for name in names} & {"ray", "vllm"}, path


def test_only_the_engine_and_the_weight_sync_know_vllm():
    allowed = (PACKAGE / "rollout" / "engine", PACKAGE / "algorithm" / "weight_sync")
    for path in files():
        if not any(place in path.parents for place in allowed):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    assert (node.module or "").partition(".")[0] != "vllm", path
                elif isinstance(node, ast.Import):
                    assert "vllm" not in {a.name.partition(".")[0] for a in node.names}, path


def test_files_are_few_and_short_enough_to_read():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files()}
    assert sum(PACKAGE in path.parents for path in lengths) <= 160
    assert {path: n for path, n in lengths.items() if n > 400} == {}


def test_names_of_the_package_are_imported_for_annotations_only_at_its_front():
    for path in files():
        if path == PACKAGE / "__init__.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                assert "rllib_dapo" not in ast.unparse(node), path
