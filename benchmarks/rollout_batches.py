"""One batch of the real rollouts, with no learner beside it."""

from __future__ import annotations

from rllib_dapo.rollout.rollouts import RolloutBatch, Rollouts


def settled_batch(rollouts: Rollouts) -> RolloutBatch:
    """The next batch, when all that belongs to it is in."""
    return rollouts.finish(rollouts.sample(lambda progress: None))
