"""Small learners without Ray, and what is read from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_dapo import metrics
from rllib_dapo.algorithm.dapo import DAPOConfig
from rllib_dapo.envs.make import make_env
from rllib_dapo.learner.batch_io import to_multi_agent_batch
from rllib_dapo.types import TokenBatch

ENV = "rllib_dapo/Arithmetic-v0"
KEYS = {metric.key.removeprefix(f"{metrics.LEARNER}/") for metric in metrics.LEARNER_METRICS}


def learner_config(model: Path | str, **settings: Any) -> DAPOConfig:
    """No warm-up, weight decay or clipping of the gradient unless asked for."""
    plain = {"warmup_iterations": 0, "weight_decay": 0.0, "grad_clip": None, "lr": 1e-3}
    config = DAPOConfig().environment(ENV).debugging(seed=3)
    config.learners(learner_config_dict={"failure_dir": str(Path(model).parent)})
    return config.training(model=str(model), **{**plain, **settings})


def make_learner(model: Path | str, *, double: bool = False, **settings: Any) -> Any:
    """A built learner; `double` casts its model to float64."""
    learner = learner_config(model, **settings).build_learner(env=make_env(ENV))
    if double:
        learner.module[DEFAULT_MODULE_ID].double()
    return learner


def update(learner: Any, batch: TokenBatch, *, steps: int = 1, epochs: int = 1) -> dict[str, float]:
    """One call of `Learner.update`; returns DAPO's metrics of it."""
    results = learner.update(
        batch=to_multi_agent_batch(batch), num_total_minibatches=steps, num_epochs=epochs
    )
    return report_of(results)


def report_of(results: dict[str, Any]) -> dict[str, float]:
    """DAPO's metrics in what a learner returned."""
    return {key: results[DEFAULT_MODULE_ID][key].peek() for key in KEYS}


def parameters(learner: Any) -> torch.Tensor:
    """All weights, one after the other."""
    return torch.cat([p.detach().flatten() for p in learner._params.values()])


def gradient(learner: Any, batch: TokenBatch) -> torch.Tensor:
    """The gradient of one update on the whole batch, as the optimizer saw it."""
    update(learner, batch)
    return torch.cat([p.grad.flatten() for p in learner._params.values()])
