"""Folders with random models, for the tests of adapters."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import KINDS, save


@pytest.fixture(scope="module", params=KINDS)
def each_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random model of each kind."""
    return save(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Qwen2."""
    return save("qwen2", tmp_path_factory.mktemp("qwen2"))
