"""Each setting is defined once; names, types, checks and documentation follow from that."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from make_docs import describe, docstrings, settings_page
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_dapo.algorithm.dapo import DAPOConfig
from rllib_dapo.settings import (
    RLlibSettings,
    RLlibTrainingSettings,
    RunSettings,
    check_settings,
    setting_names,
)
from rllib_dapo.settings.names import SETTING_CLASSES, setting_kinds

ROOT = Path(__file__).parents[2]
DEPRECATED = {"num_sgd_iter", "max_requests_in_flight_per_sampler_worker"}


def test_the_defaults_are_possible_without_rllib():
    settings = RunSettings(group_size=8, groups_per_batch=16)
    check_settings(settings)
    assert settings.completions_per_batch == settings.minibatch_size == 128


def test_a_config_begins_with_the_defaults_of_the_settings():
    made = vars(DAPOConfig())
    defaults = vars(RunSettings())
    assert {name: made[name] for name in defaults} == defaults
    assert set(defaults) == set(setting_kinds())


def test_training_takes_the_settings_and_rllibs_own_keywords():
    listed = set(inspect.signature(DAPOConfig.training).parameters) - {"self"}
    ours = {"model" if n == "language_model" else n for n in setting_names()}
    rllibs = set(inspect.signature(AlgorithmConfig.training).parameters) - {"self"} - DEPRECATED
    assert listed == ours | rllibs
    assert {field.name for field in fields(RLlibTrainingSettings)} < rllibs


def test_editors_and_help_see_types_and_defaults():
    keyword = inspect.signature(DAPOConfig.training).parameters["clip_high"]
    assert (keyword.annotation, keyword.default) == (float, 0.28)
    assert str(keyword) == "clip_high: float = 0.28"


def test_training_sets_what_it_is_given_and_nothing_else():
    made, untouched = DAPOConfig(), DAPOConfig()
    made.training(clip_high=0.3, lr=1e-5, gamma=0.9)
    assert (made.clip_high, made.lr, made.gamma) == (0.3, 1e-5, 0.9)
    changed = {k for k, v in vars(made).items() if v != vars(untouched).get(k)}
    assert changed <= {"clip_high", "lr", "gamma"}


@pytest.mark.parametrize("kind", [*SETTING_CLASSES, RLlibTrainingSettings, RLlibSettings])
def test_every_setting_says_what_it_means(kind):
    meanings = docstrings(kind)
    assert list(meanings) == list(kind.__annotations__)
    for name, text in meanings.items():
        assert len(text) > 20, name
        assert text[0].isupper() or text.startswith("ε"), name
        assert text.endswith("."), name


def test_the_page_of_settings_is_up_to_date():
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == settings_page()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("clip_low", "number above 0 below 1"),
        ("top_p", "number, 1 only"),
        ("importance_mask_above", "number above 1 or None"),
        ("kl_estimator", "`k1`, `k2`, `k3`"),
        ("lora_target_modules", "text or list"),
        ("num_cpus_per_learner", "number or `auto`"),
    ],
)
def test_the_page_says_which_values_a_setting_takes(name, values):
    assert describe(setting_kinds()[name]) == values


def test_settings_load_neither_ray_nor_vllm_nor_torch():
    """In a process whose package does not register the algorithm first."""
    code = (
        "import sys, types; package = types.ModuleType('rllib_dapo'); "
        f"package.__path__ = [{str(ROOT / 'rllib_dapo')!r}]; sys.modules['rllib_dapo'] = package; "
        "import rllib_dapo.settings; "
        "print(sorted({'ray', 'vllm', 'torch', 'transformers'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


# -- What the type checker finds ----------------------------------------------------------------


SNIPPET = """
from rllib_dapo.algorithm.config import DAPOBaseConfig
from rllib_dapo.settings import LearnerSettings, RunSettings

def loss(settings: LearnerSettings) -> None:
    print(settings.clip_hgih)

def run(settings: RunSettings, config: DAPOBaseConfig) -> None:
    settings.minibatchsize
    config.training(clip_hgih=0.3)
    config.training(clip_high="0.3")
    config.training(clip_high=0.3, lr=1e-5, model="embedded").training(kl_coef=0.1)

LearnerSettings(clip_low=0.1, clip_hi=0.2)
"""


@pytest.mark.slow
def test_the_type_checker_finds_misspelt_settings(tmp_path):
    """In functions that take settings, and among the keywords of `training`."""
    pytest.importorskip("mypy")
    (tmp_path / "snippet.py").write_text(SNIPPET, encoding="utf-8")
    # Only what is looked at is read; torch and transformers would take minutes.
    (tmp_path / "mypy.ini").write_text(
        f"""[mypy]
strict = true
follow_imports = skip
ignore_missing_imports = true
disallow_subclassing_any = false
mypy_path = {ROOT}
cache_dir = {tmp_path / "cache"}
[mypy-rllib_dapo.settings.*,rllib_dapo.errors,rllib_dapo.algorithm.config]
follow_imports = normal
""",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "mypy", f"--config-file={tmp_path / 'mypy.ini'}"]
    result = subprocess.run(
        [*command, str(tmp_path / "snippet.py")], capture_output=True, text=True, check=False
    )
    assert not result.stderr
    report = result.stdout
    found = [line.split("snippet.py:")[1] for line in report.splitlines() if ": error:" in line]
    assert [line.split(":")[0] for line in found] == ["6", "9", "10", "11", "12", "14"], report
    for line, name in zip(
        found, ["clip_hgih", "minibatchsize", "clip_hgih", "clip_high", "kl_coef", "clip_hi"],
        strict=True,
    ):  # fmt: skip
        assert name in line
