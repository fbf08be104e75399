"""Groups of learners, and one learner that is fed what they have between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from learners import ENV, learner_config, report_of
from reference_model import batch_of, random_rows

from rllib_dapo.envs.make import make_env
from rllib_dapo.learner.batch_io import to_multi_agent_batch
from rllib_dapo.model.batching import concatenate, minibatches, select, split_for_ranks
from rllib_dapo.types import TokenBatch

# float32, sums in another order; Adam divides small differences by small gradients.
TOLERANCE = 2e-5
SETTINGS = {"lr": 1e-3, "weight_decay": 0.1, "grad_clip": 1.0}


def learner_group(model: Any, num_learners: int, **settings: Any) -> Any:
    config = learner_config(model, **{**SETTINGS, **settings})
    config.learners(num_learners=num_learners, num_cpus_per_learner=1)
    return config.build_learner_group(env=make_env(ENV))


def weights_of(group: Any) -> list[torch.Tensor]:
    """The weights of each learner."""

    def flat(learner: Any) -> Any:
        return torch.cat([p.detach().flatten() for p in learner._params.values()]).numpy()

    return [torch.from_numpy(np.array(r.get())) for r in group.foreach_learner(flat)]


class Reference:
    """One learner in this process, fed the minibatches that several have between them."""

    def __init__(self, model: Any, **settings: Any) -> None:
        self.group = learner_group(model, 0, **settings)
        self._learner = self.group._learner
        self._parts: list[TokenBatch] = []
        self._learner._create_iterator_if_necessary = self._iterator

    def _iterator(self, **_: Any) -> Any:
        whole = self._learner._prepare(concatenate(self._parts))
        cuts = np.cumsum([len(part) for part in self._parts])[:-1]
        rows = np.split(np.arange(len(whole)), cuts)
        return [to_multi_agent_batch(select(whole, part)) for part in rows]

    def update(self, shares: list[TokenBatch], steps: int) -> dict[str, float]:
        number = self._learner._weights_seq_no + 1
        cut = [
            minibatches(share, steps, np.random.default_rng([self._learner.config.seed, number]))
            for share in shares
        ]
        self._parts = [concatenate([c[i] for c in cut if i < len(c)]) for i in range(steps)]
        assert sum(len(part) for part in self._parts) == sum(len(share) for share in shares)
        (results,) = self.group.update(batch=to_multi_agent_batch(concatenate(shares)))
        return report_of(results)


def scenarios(model: Any) -> dict[str, tuple[list[TokenBatch], int]]:
    """Name -> each learner's share, and optimizer steps."""
    uneven = batch_of(model, random_rows([12, 1, 3, 0, 8, 2, 5, 2, 9]))
    shares = split_for_ranks(uneven, 2)
    masked = replace(shares[1], loss_mask=np.zeros(len(shares[1]), np.bool_))
    few = split_for_ranks(batch_of(model, random_rows([6, 1, 2], seed=4)), 2)
    lonely = split_for_ranks(batch_of(model, random_rows([6], seed=5)), 2)
    return {
        "uneven": (shares, 1),
        "uneven, several steps": (shares, 3),
        "all of one learner masked": ([shares[0], masked], 2),
        "fewer answers than learners in a step": (few, 2),
        "a learner without any answer": (lonely, 1),
        "uneven again": (shares, 2),
    }


NAMES = [
    "uneven", "uneven, several steps", "all of one learner masked",
    "fewer answers than learners in a step", "a learner without any answer", "uneven again",
]  # fmt: skip
