"""Checks of the learner's settings: optimizer, importance weights, sharding."""

from __future__ import annotations

import math

from rllib_dapo.errors import refuse
from rllib_dapo.settings.run import RunSettings


def check_learner(config: RunSettings) -> None:
    """Refuse impossible settings of the learner.

    Raises:
        SettingError: names the setting, its value and the remedy.
    """
    _check_optimizer(config)
    _check_importance(config)
    _check_learners(config)


def _check_optimizer(config: RunSettings) -> None:
    if not 0 <= config.adam_beta2 < 1:
        refuse("adam_beta2", config.adam_beta2, "use a number from 0 to below 1, such as 0.999")
    if not 0 <= config.lr_end_factor <= 1:
        refuse("lr_end_factor", config.lr_end_factor, "use a share of `lr`, from 0 to 1")
    end = config.lr_decay_iterations
    if config.lr_schedule == "cosine" and (end is None or end <= config.warmup_iterations):
        refuse(
            "lr_decay_iterations",
            end,
            "with lr_schedule='cosine' give the iteration at which `lr` has fallen all the way, "
            f"after warmup_iterations={config.warmup_iterations}",
        )
    if not math.isfinite(config.entropy_coeff):
        refuse("entropy_coeff", config.entropy_coeff, "use a number, 0 for no entropy bonus")
    if config.grad_clip is not None and not config.grad_clip > 0:
        refuse("grad_clip", config.grad_clip, "use a norm above 0, or null for no clipping")
    if config.grad_clip_by != "global_norm":
        refuse("grad_clip_by", config.grad_clip_by, "DAPO clips by `global_norm` only")


def _check_importance(config: RunSettings) -> None:
    """What weighs or masks tokens needs the learner's own old log-probabilities."""
    limit = config.importance_mask_above
    if not config.importance_cap >= 1:
        refuse("importance_cap", config.importance_cap, "use 1 or more, such as 2.0")
    if limit is not None and not limit > 1:
        refuse("importance_mask_above", limit, "use a number above 1, or null for no mask")
    if config.old_logprobs == "learner":
        return
    remedy = (
        "this compares the engine with the learner; set old_logprobs='learner'. With 'engine' the "
        "ratio of the loss starts from the engine's own probabilities and needs no correction"
    )
    if config.importance_sampling != "none":
        refuse("importance_sampling", config.importance_sampling, remedy)
    if limit is not None:
        refuse("importance_mask_above", limit, remedy)


def _check_learners(config: RunSettings) -> None:
    """Sharding needs learners to shard over."""
    if config.shard_model and config.num_learners < 2:
        refuse(
            "shard_model",
            True,
            f"num_learners={config.num_learners} leaves nothing to share; set `num_learners` to 2 "
            "or more, or `shard_model` to false",
        )
