"""The gradient of an update, by every way to compute it, against loops over the formula.

    {1, 2} learners x {1, 3, 7} micro-batches x {packed, packed with shared prompts, padded}
    x every aggregation

Two learners are Ray actors that exchange over gloo; they get uneven shares, and groups
that lie partly in one share and partly in the other.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
import torch
from learners import ENV, gradient, learner_config, make_learner
from ray.rllib.core import DEFAULT_MODULE_ID
from reference_model import batch_of, random_rows
from strategies import rows_of
from transformers import AutoModelForCausalLM

from rllib_dapo.envs.make import make_env
from rllib_dapo.learner.batch_io import to_multi_agent_batch
from rllib_dapo.learner.microbatch import MicrobatchLayout
from rllib_dapo.model.batching import select, split_for_ranks
from rllib_dapo.settings.choices import Aggregation

AGGREGATIONS = get_args(Aggregation)
LAYOUTS = {
    "packed": {"packing": True, "share_prompts": False},
    "shared": {"packing": True, "share_prompts": True},
    "padded": {"packing": False, "share_prompts": False},
}
MAX_LENGTH = 12
# The models are cast to float64; transformers still computes norms and rotations in float32.
TOLERANCE = 1e-6

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def batch(policy) -> Any:
    """Seven completions of three groups, one masked, one empty; two prompts occur twice."""
    rows = random_rows([9, 1, 4, 0, 7, 2, 5])
    prompts = [rows[i][0] for i in (0, 0, 2, 3, 2, 5, 6)]
    rows = [(prompt, completion) for prompt, (_, completion) in zip(prompts, rows, strict=True)]
    mask = [True, True, True, True, False, True, True]
    return batch_of(policy, rows, loss_mask=mask, groups=[0, 0, 1, 2, 1, 2, 0])


def reference_gradient(folder: Any, batch: Any, aggregation: str) -> torch.Tensor:
    """Row by row through transformers, in float64, with the formulas written out."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval().double()
    sums, lengths, groups = [], [], []
    for prompt, completion, old, advantage, kept, group in rows_of(batch):
        if not kept or not completion:
            continue
        ids = torch.tensor([[*prompt, *completion]])
        table = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        total = 0.0
        for t, token in enumerate(completion):
            ratio = torch.exp(table[t, token] - old[t])
            total = total + torch.minimum(
                ratio * advantage, ratio.clamp(1 - 0.2, 1 + 0.28) * advantage
            )
        sums.append(total)
        lengths.append(len(completion))
        groups.append(group)
    if aggregation == "token_mean":
        objective = sum(sums) / sum(lengths)
    elif aggregation == "sequence_mean":
        objective = sum(s / n for s, n in zip(sums, lengths, strict=True)) / len(sums)
    elif aggregation == "constant":
        objective = sum(sums) / (len(sums) * MAX_LENGTH)
    else:
        means = [
            sum(s for s, g in zip(sums, groups, strict=True) if g == group)
            / sum(n for n, g in zip(lengths, groups, strict=True) if g == group)
            for group in sorted(set(groups))
        ]
        objective = sum(means) / len(means)
    (-objective).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.fixture(scope="module")
def expected(tiny_model, batch) -> dict[str, torch.Tensor]:
    return {a: reference_gradient(tiny_model, batch, a) for a in AGGREGATIONS}


def budget_for(name: str, shares: list[Any], parts: int) -> int:
    """The largest budget with which a layout makes so many micro-batches of all shares."""
    layout = MicrobatchLayout(1, pad_id=0, **LAYOUTS[name])
    for budget in range(120, 0, -1):
        if sum(len(replace(layout, max_tokens=budget).split(s)) for s in shares) == parts:
            return budget
    raise AssertionError(f"no budget makes {parts} micro-batches")


def configuration(*, aggregation: str, budget: int, packing: bool, share_prompts: bool) -> Any:
    """A function that changes what a built learner does, here or in an actor."""

    def apply(learner: Any) -> None:
        from dataclasses import replace  # actors cannot import this file

        from ray.rllib.core import DEFAULT_MODULE_ID

        learner.config._is_frozen = False
        learner.config.loss_aggregation = aggregation
        learner.config._is_frozen = True
        learner._layout = replace(
            learner._layout, max_tokens=budget, packing=packing, share_prompts=share_prompts
        )
        model = learner.module[DEFAULT_MODULE_ID].causal_lm
        model.set_attn_implementation("rllib_dapo_packed" if packing else "sdpa")

    return apply


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference, relative to the largest element."""
    return float((a - b).abs().max() / b.abs().max())


# -- One learner ----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def learner(layout, tiny_model) -> Any:
    settings = {"lr": 0.0, "max_completion_length": MAX_LENGTH, "soft_overlong_cache": 4}
    return make_learner(tiny_model, double=True, **settings, **LAYOUTS[layout])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("parts", [1, 3, 7])
def test_one_learner(learner, layout, aggregation, parts, batch, expected):
    budget = budget_for(layout, [batch], parts)
    configuration(aggregation=aggregation, budget=budget, **LAYOUTS[layout])(learner)
    assert len(learner._layout.split(batch)) == parts
    got = gradient(learner, batch)
    assert expected[aggregation].abs().max() > 1e-3
    assert difference(got, expected[aggregation]) <= TOLERANCE


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.15)])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_one_learner_in_single_and_half_precision(
    tiny_model, layout, aggregation, dtype, tolerance, batch, expected
):
    """Stated tolerances; a wrong denominator is off by far more than either."""
    settings = {"max_completion_length": MAX_LENGTH, "soft_overlong_cache": 4, "lr": 0.0}
    learner = make_learner(
        tiny_model, loss_aggregation=aggregation, compute_dtype=dtype, **settings, **LAYOUTS[layout]
    )
    got = gradient(learner, batch)
    assert got.dtype == torch.float32
    assert float((got - expected[aggregation]).norm() / expected[aggregation].norm()) <= tolerance


def test_the_aggregations_are_four_different_things(expected):
    for a, b in product(AGGREGATIONS, AGGREGATIONS):
        assert a == b or difference(expected[a], expected[b]) > 1e-2


def test_a_mean_per_microbatch_is_caught(learner, layout, batch, expected, monkeypatch):
    """The usual mistake: each micro-batch divided by its own tokens, then averaged."""
    configuration(aggregation="token_mean", budget=1, **LAYOUTS[layout])(learner)
    parts = len(learner._layout.split(batch))
    backward = learner._backward

    def own_mean(minibatch: Any, rows: Any, weights: Any) -> Any:
        tokens = max(int(minibatch.completion_lengths[rows][minibatch.loss_mask[rows]].sum()), 1)
        return backward(minibatch, rows, np.where(weights > 0, 1 / (tokens * parts), 0.0))

    monkeypatch.setattr(learner, "_backward", own_mean)
    assert difference(gradient(learner, batch), expected["token_mean"]) > 1e-2


# -- Two learners -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(ray_session, tiny_model) -> Any:
    """Two remote learners in float64."""
    settings = {"lr": 0.0, "max_completion_length": MAX_LENGTH, "soft_overlong_cache": 4}
    config = learner_config(tiny_model, **settings).learners(num_learners=2)
    group = config.build_learner_group(env=make_env(ENV))

    group.foreach_learner(lambda learner: learner.module[DEFAULT_MODULE_ID].double())
    yield group
    group.shutdown()


def pair_gradient(group: Any, shares: list[Any], change: Any) -> list[torch.Tensor]:
    """The gradient that each of the learners would step along."""

    def read(learner: Any) -> Any:
        return torch.cat([p.grad.flatten() for p in learner._params.values()]).numpy()

    group.foreach_learner(change)
    group.update(
        batches=[to_multi_agent_batch(share) for share in shares],
        num_total_minibatches=1,
        num_epochs=1,
    )
    return [torch.from_numpy(np.array(result.get())) for result in group.foreach_learner(read)]


@pytest.mark.slow
@pytest.mark.timeout(240)  # collectives wait half an hour for a partner that does not come
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("parts", [1, 3, 7])
@pytest.mark.parametrize("name", LAYOUTS)
def test_two_learners(pair, name, aggregation, parts, batch, expected):
    """`parts` micro-batches in all; with 1 a learner has nothing to do."""
    shares = split_for_ranks(batch, 2) if parts > 1 else [batch, select(batch, [])]
    budget = budget_for(name, shares, parts)
    change = configuration(aggregation=aggregation, budget=budget, **LAYOUTS[name])
    got = pair_gradient(pair, shares, change)
    assert torch.equal(got[0], got[1])
    assert difference(got[0], expected[aggregation]) <= TOLERANCE
