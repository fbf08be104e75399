"""Reward functions in the runner: called once per group, harming none but their own."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import hostile_rewards
import pytest
from hostile_rewards import entries
from scripted_engine import mixed, right, scripted_runner

from rllib_dapo.algorithm.dapo import DAPOConfig
from rllib_dapo.rollout.engine.base import Sampling
from rllib_dapo.rollout.group_filter import classify
from rllib_dapo.rollout.sampling_job import SamplingJob
from rllib_dapo.types import Group, ProblemRef

REFS = tuple(ProblemRef(position, 100 + position, 7 * position) for position in range(3))
JOB = SamplingJob(REFS, 4, Sampling(1.0, 1.0, 64), seed=11)


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    with hostile_rewards.clean():
        yield


@pytest.fixture
def runner(request):
    """A function that makes a runner with a scripted engine."""

    def make(script: Any = mixed, **settings: Any) -> Any:
        config = DAPOConfig().environment("rllib_dapo/Arithmetic-v0").update_from_dict(settings)
        made = scripted_runner(script)(config=config, worker_index=0, num_workers=0)
        request.addfinalizer(made.stop)
        return made

    return make


def collect(runner: Any, job: SamplingJob = JOB) -> list[Group]:
    reply = runner.collect(job, seconds=60.0)
    assert reply.error is None
    assert not reply.unfinished
    return sorted(reply.groups, key=lambda group: group.ref.position)


def test_groups_come_with_their_components_and_survive_pickling(runner):
    made = runner(format_reward=0.5, reward_functions=entries("boolean", weight=0.25))
    groups = collect(made)
    assert len(groups) == 3
    for group in (*groups, *pickle.loads(pickle.dumps(groups))):  # noqa: S301 - our own
        for c in group.completions:
            assert c.components == {"format": 1.0, "boolean": float(c.correct)}
        assert sorted(group.rewards) == [-0.5, -0.5, 1.75, 1.75]
        assert sorted(group.scores) == [-1.0, -1.0, 1.0, 1.0]


def test_a_function_is_called_once_per_group_with_the_problem_as_posed(runner):
    groups = collect(runner(reward_functions=entries("of_a_group")))
    assert sorted(problem for _, problem, *_ in hostile_rewards.CALLS) == sorted(
        group.prompt.text.strip() for group in groups
    )
    assert {len(answers) for answers, *_ in hostile_rewards.CALLS} == {4}
    for _, _, infos, truncated, num_tokens in hostile_rewards.CALLS:
        assert {info["correct"] for info in infos} == {True, False}
        assert not any(truncated)
        assert min(num_tokens) > 1


def test_a_failing_function_harms_its_own_group_only(runner):
    made = runner(reward_functions=entries("one_problem_raises"))
    hostile_rewards.CALLS.append(made.env.reset(seed=0, options={"index": 101})[0])
    first, second, third = collect(made)
    assert [g.failure is None for g in (first, second, third)] == [True, False, True]
    assert second.failure == "reward function `one_problem_raises` raised ValueError: not this one"
    assert (second.completions, second.reward_failures) == ((), {"raised": 4})
    assert classify(second) == "failed"
    for group in (first, third):
        assert [c.components for c in group.completions] == [{"one_problem_raises": 1.0}] * 4


def test_a_function_that_hangs_does_not_hang_the_runner(runner):
    made = runner(reward_functions=entries("sleeps"), reward_timeout_s=0.05)
    assert [g.reward_failures for g in collect(made)] == [{"timed_out": 4}] * 3
    reply = made.collect(JOB, seconds=60.0)
    assert (len(reply.groups), reply.error) == (1, None)  # the fourth call that hangs
    reply = made.collect(None, seconds=60.0)  # then no more
    assert reply.error.startswith("RewardError: 4 calls of reward functions (sleeps)")


def test_the_policy_error_stops_the_job_with_the_reason(runner):
    made = runner(reward_functions=entries("raises"), reward_failure="error")
    reply = made.collect(JOB, seconds=60.0)
    assert reply.error.startswith("RewardError: reward function `raises` raised ValueError")


IN_EVALUATION = replace(JOB, refs=(replace(REFS[0], evaluation=True),))


def test_evaluation_reports_the_components_of_the_reward(runner):
    made = runner(reward_functions=entries("boolean"))
    (group,) = collect(made, IN_EVALUATION)
    assert [c.components for c in group.completions] == [
        {"boolean": float(c.correct)} for c in group.completions
    ]


def test_an_evaluation_may_have_reward_functions_of_its_own(runner):
    made = runner(
        reward_functions=entries("boolean"),
        evaluation_config={"reward_functions": entries("numpy_scalar")},
    )
    assert all(set(c.components) == {"boolean"} for c in collect(made)[0].completions)
    (group,) = collect(made, IN_EVALUATION)
    assert all(set(c.components) == {"numpy_scalar"} for c in group.completions)


def test_coroutines_run_in_one_event_loop_in_training_and_in_evaluation(runner):
    """A client that is kept between calls belongs to the loop in which it was made."""
    made = runner(reward_functions=entries("loop_number"))
    for job in (JOB, IN_EVALUATION, JOB):
        for group in collect(made, job):
            assert all(c.components == {"loop_number": 0.0} for c in group.completions)
    assert len(hostile_rewards.CALLS) > 8


def test_a_function_that_fails_in_evaluation_takes_no_verdict_away(runner):
    made = runner(reward_functions=entries("raises"))
    (group,) = collect(made, IN_EVALUATION)
    assert group.failure is None
    assert group.reward_failures == {"raised": 4}
    assert [c.correct for c in group.completions].count(True) == 2
    assert [c.components for c in group.completions] == [{}] * 4


def test_episodes_for_rllib_carry_the_whole_reward(runner):
    made = runner(right, reward_functions=entries("numpy_scalar"), group_size=2)
    assert [episode.get_rewards(0) for episode in made.sample()] == [1.5, 1.5]


def test_reflections_are_counted_in_the_text_of_the_answer(runner):
    class Thoughtful:
        def decode(self, token_ids: Any, **options: Any) -> str:
            return "Wait, let me check. Answer: 1"

    made = runner()
    made._episodes._tokenizer = Thoughtful()  # the embedded one knows digits only
    assert [c.reflections for g in collect(made) for c in g.completions] == [2] * 12
