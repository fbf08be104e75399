"""A stand-in for an algorithm with a strict config, and a way to read experiments."""

from __future__ import annotations

import textwrap
from types import SimpleNamespace
from typing import Any

from rllib_dapo.cli.experiment_file import Experiment, parse_experiments
from rllib_dapo.errors import SettingError


class FakeConfig:
    """Knows `lr`, `env`, `model` and `env_config.digits`, as a strict config does."""

    def __init__(self) -> None:
        self.lr, self.env, self.model = 1e-6, None, "tiny"

    def update_from_dict(self, settings: dict[str, Any]) -> FakeConfig:
        for key, value in settings.items():
            if key == "env_config" and "digits" not in value:
                name = f"env_config.{next(iter(value))}"
                raise SettingError(f"`{name}` is unknown; did you mean `digits`?", name)
            if key not in ("lr", "env", "model", "env_config", "num_env_runners"):
                raise SettingError(f"`{key}` is unknown; did you mean `lr`?", key)
            setattr(self, key, value)
        return self

    def validate(self) -> None:
        if not isinstance(self.lr, float) or self.lr <= 0:
            raise SettingError(f"`lr` is {self.lr}; it must be above 0", "lr")
        if self.model == "missing":
            raise ValueError("no such model")


class FakeAlgorithm:
    @staticmethod
    def get_default_config() -> FakeConfig:
        return FakeConfig()

    @staticmethod
    def default_resource_request(config: dict[str, Any]) -> Any:
        workers = config.get("num_env_runners", 0)
        return SimpleNamespace(bundles=[{"CPU": 1}] + [{"CPU": 1, "GPU": 1}] * workers)


def read(text: str) -> list[Experiment]:
    return parse_experiments(textwrap.dedent(text), "x.yaml")
