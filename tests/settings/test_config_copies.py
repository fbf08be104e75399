"""A configuration survives copies, dictionaries and pickles."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from ray import tune

from rllib_dapo.algorithm.dapo import DAPOConfig
from rllib_dapo.errors import SettingError
from rllib_dapo.settings import DAPOSettings, setting_names


def config(**overrides: Any) -> DAPOConfig:
    made = DAPOConfig().environment("rllib_dapo/Arithmetic-v0")
    return made.update_from_dict(overrides)


def changed() -> DAPOConfig:
    made = config(model="some/folder", clip_high=0.31, engine_kwargs={"max_num_seqs": 8})
    return made.training(lr=1e-3, few_shot=[{"problem": "1+1", "answer": "2"}]).debugging(seed=5)


def own(made: DAPOConfig) -> dict[str, Any]:
    return {name: getattr(made, name) for name in (*setting_names(), "lr", "env", "seed")}


def test_to_dict_and_update_from_dict_are_inverse():
    restored = DAPOConfig().update_from_dict(changed().to_dict())
    assert own(restored) == own(changed())
    assert own(restored) != own(DAPOConfig())


def test_a_config_pickles():
    restored = pickle.loads(pickle.dumps(changed()))  # noqa: S301 - our own
    assert own(restored) == own(changed())
    restored.update_from_dict({"model": "embedded"}).validate()


def test_copies_do_not_share_mutable_values():
    one, other = DAPOConfig(), DAPOConfig()
    copy = one.copy()
    one.engine_kwargs["max_num_seqs"] = 4
    assert other.engine_kwargs == {}
    assert copy.engine_kwargs == {}
    assert DAPOSettings().engine_kwargs == {}


@pytest.mark.parametrize("how", ["training", "update_from_dict"])
def test_model_is_the_written_name_of_language_model(how):
    made = DAPOConfig()
    if how == "training":
        made.training(model="x/y")
    else:
        made.update_from_dict({"model": "x/y"})
    assert made.language_model == "x/y"


def test_search_spaces_of_tune_pass_until_validated():
    space = tune.loguniform(1e-5, 1e-3)
    grid = tune.grid_search([0.2, 0.28])
    made = config().training(lr=space, clip_high=grid)
    assert made.lr is space
    assert made.clip_high == grid
    assert made.to_dict()["clip_high"] == grid
    assert config(lr=space).lr is space
    with pytest.raises(SettingError, match="lr="):
        made.validate()
