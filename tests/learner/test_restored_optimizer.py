"""What the optimizer of a restored learner takes from the checkpoint, and what from its config."""

from __future__ import annotations

import pytest
import torch
from learners import make_learner, update

pytestmark = pytest.mark.usefixtures("one_thread")

OLD = {"lr": 1e-3, "weight_decay": 0.1, "adam_beta2": 0.999}
NEW = {"lr": 5e-4, "weight_decay": 0.0, "adam_beta2": 0.9}


def optimizer(learner):
    (found,) = learner._optimizer_parameters
    return found


@pytest.mark.parametrize("changed", [["lr"], ["weight_decay"], ["adam_beta2"], list(NEW)])
def test_settings_are_those_of_the_config_and_moments_those_of_the_checkpoint(
    tiny_model, batch, changed
):
    first = make_learner(tiny_model, **OLD)
    update(first, batch)
    settings = OLD | {name: NEW[name] for name in changed}
    second = make_learner(tiny_model, **settings)
    second.set_state(first.get_state())
    (group,) = optimizer(second).param_groups
    assert group["weight_decay"] == settings["weight_decay"]
    assert group["betas"] == (0.9, settings["adam_beta2"])
    assert group["lr"] == settings["lr"]
    saved, restored = (optimizer(one).state_dict()["state"] for one in (first, second))
    for number, values in saved.items():
        for key, value in values.items():
            assert torch.equal(torch.as_tensor(restored[number][key]), torch.as_tensor(value))


def test_the_next_step_is_that_of_the_new_settings(tiny_model, batch):
    """With a learning rate of 0 nothing moves, whatever the checkpoint had."""
    first = make_learner(tiny_model, **OLD)
    update(first, batch)
    second = make_learner(tiny_model, **OLD | {"lr": 0.0})
    second.set_state(first.get_state())
    before = {name: p.clone() for name, p in second._params.items()}
    assert update(second, batch)["lr"] == 0.0
    assert all(torch.equal(p, before[name]) for name, p in second._params.items())
