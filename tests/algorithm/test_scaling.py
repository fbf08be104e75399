"""The driver's own loop over many scripted runners: hosted in Ray actors, and in virtual time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import rollout_env
import rollout_hosts
from rollout_batches import settled_batch
from rollout_driver import make_rollouts, scripted_config
from rollout_virtual import VirtualCalls

from rllib_dapo.rollout.engine.scripted import CompletionLengths, StepTime
from rllib_dapo.rollout.problem_source import ProblemSource
from rllib_dapo.rollout.rollouts import RolloutBatch, Rollouts
from rllib_dapo.rollout.runner_pool import RunnerPool
from rllib_dapo.types import Group

pytestmark = pytest.mark.timeout(120)

GROUPS = 48
SIZE = 4


def small_config(**settings: Any) -> Any:
    """Answers of about 20 tokens, a fifth of them cut; an engine computes 8 at once."""
    engine = {
        "lengths": CompletionLengths(median=20, sigma=0.8, endless=0.1),
        "step_time": StepTime(fixed_s=0.001),
        "capacity": 8,
    }
    settings = {"rate": 0.5, "engine_kwargs": engine, **settings}
    limits = {"max_completion_length": 48, "soft_overlong_cache": 8}
    return scripted_config(groups=GROUPS, group_size=SIZE, **limits, **settings)


def virtual(config: Any, runners: int) -> Rollouts:
    pool = RunnerPool(
        VirtualCalls(config, runners), config, seed=0, send_weights=lambda numbers: []
    )
    return Rollouts(config, pool, ProblemSource(config))


def batches(rollouts: Rollouts, count: int) -> list[RolloutBatch]:
    return [settled_batch(rollouts) for _ in range(count)]


def answers(groups: tuple[Group, ...]) -> dict[int, list[list[int]]]:
    return {g.ref.position: [c.token_ids.tolist() for c in g.completions] for g in groups}


# -- Real messages ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hosted(ray_session):
    """64 runners in one actor."""
    from ray import cloudpickle

    modules = (rollout_env, rollout_hosts)  # Ray's workers cannot import them here
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    group = rollout_hosts.HostedRunnerGroup(small_config(), 64)
    yield group
    group.stop()
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


def test_64_runners_deliver_exactly_the_groups_asked_for(hosted):
    config = small_config(dynamic_sampling=False)
    rollouts = make_rollouts(config, hosted)
    sampled = batches(rollouts, 3)
    assert [[g.ref.position for g in batch.groups] for batch in sampled] == [
        list(range(i * GROUPS, (i + 1) * GROUPS)) for i in range(3)
    ]
    assert all(len(g.completions) == SIZE for batch in sampled for g in batch.groups)
    assert rollouts._pool.in_flight == 0
    assert not rollouts._pool.lost
    busy = [runner.busy_s > 0 for runner in rollouts._pool._runners.values()]
    assert sum(busy) > 40  # not a few runners do it all


def test_64_hosted_runners_train_on_what_3_virtual_ones_would(hosted):
    """Which runner answers, when and beside what, changes neither answers nor batches."""
    config = small_config()
    many = batches(make_rollouts(config, hosted), 2)
    few = batches(virtual(config, 3), 2)
    for one, other in zip(many, few, strict=True):
        assert len(one.groups) == GROUPS
        assert answers(one.groups) == answers(other.groups)
        assert one.counts == other.counts


# -- Virtual time ---------------------------------------------------------------------------------


def test_256_virtual_runners_get_a_share_each():
    config = small_config(dynamic_sampling=False).training(groups_per_batch=256)
    rollouts = virtual(config, 256)
    batches(rollouts, 2)  # the first one shows the pool what the engines can do
    runners = rollouts._pool._calls._runners.values()
    assert all(runner.steps > 0 for runner in runners)


@pytest.mark.parametrize("rate", [0.9, 0.3])
def test_the_number_of_runners_changes_no_batch(rate):
    first, *others = (
        [answers(b.groups) for b in batches(virtual(small_config(rate=rate), runners), 3)]
        for runners in (1, 5, 40)
    )
    assert len({position for batch in first for position in batch}) == 3 * GROUPS
    assert all(other == first for other in others)


@pytest.mark.parametrize("unfinished", ["finish", "abort", "continue"])
def test_no_problem_is_lost_or_counted_twice_whatever_becomes_of_unfinished_ones(unfinished):
    config = small_config(unfinished_groups=unfinished)
    rollouts = virtual(config, 16)
    sampled = batches(rollouts, 4)
    seen = Counter(g.ref.position for batch in sampled for g in batch.sampled)
    trained = Counter(g.ref.position for batch in sampled for g in batch.groups)
    assert set(seen.values()) == {1}
    assert set(trained.values()) == {1}
    assert trained.total() == 4 * GROUPS
    asked = rollouts._problems.position
    in_flight = {ref.position for ref in rollouts.get_state()["again"]}
    assert set(seen) | in_flight == set(range(asked))
    assert not set(seen) & in_flight


def test_partial_rollouts_finish_batches_sooner_when_answers_are_uneven():
    """In virtual time, which is exact: the same schedule takes the same time everywhere."""

    def seconds(unfinished: str) -> float:
        config = small_config(unfinished_groups=unfinished)
        calls = VirtualCalls(config, 16)
        pool = RunnerPool(calls, config, seed=0, send_weights=lambda numbers: [])
        batches(Rollouts(config, pool, ProblemSource(config)), 4)
        return calls.now

    assert seconds("continue") < seconds("finish")
