"""A runner with a real engine: problems in, scored groups out, whatever the environment does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from reference_model import EOS, answer_logprobs, embedded_model
from runner_groups import JOB, REFS, collect_all
from scripted_engine import ScriptedEngine, mixed

from rllib_dapo.envs.arithmetic import ArithmeticEnv, sum_at
from rllib_dapo.envs.spaces import UnicodeText
from rllib_dapo.errors import EngineError
from rllib_dapo.rollout.engine.base import Sampling
from rllib_dapo.rollout.group_filter import classify
from rllib_dapo.types import Group, ProblemRef

pytestmark = pytest.mark.timeout(180)


def answers(groups: list[Group]) -> list[list[int]]:
    return [c.token_ids.tolist() for group in groups for c in group.completions]


class Bad(gym.Env[str, str]):
    """Arithmetic, but every third problem goes wrong in the way asked for."""

    observation_space = UnicodeText()
    action_space = UnicodeText()

    def __init__(self, how: str) -> None:
        self._how = how
        self._inner = ArithmeticEnv()
        self._bad = False
        self.seen: list[str] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._bad = options["index"] % 3 == 0
        if self._bad and self._how == "reset raises":
            raise ZeroDivisionError("no problem here")
        observation, info = self._inner.reset(seed=seed, options=options)
        self.seen.append(observation)
        long = self._bad and self._how == "long prompt"
        return observation * 40 if long else observation, info

    def step(self, action: str) -> Any:
        if self._bad and self._how == "step raises":
            raise ValueError("no verdict")
        observation, reward, terminated, truncated, info = self._inner.step(action)
        if self._bad:
            reward = {"NaN": float("nan"), "None": None, "inf": np.inf}.get(self._how, reward)
        return observation, reward, terminated, truncated, info


# -- Groups -------------------------------------------------------------------------------


def test_a_job_becomes_groups_of_g_scored_answers(runner):
    groups = collect_all(runner, JOB)
    assert [g.ref for g in groups] == list(REFS)
    for group in groups:
        assert len(group.completions) == 4
        problem = sum_at(group.ref.index, split="train")
        assert group.prompt.text == problem.text + "\n"
        assert group.failure is None
        for c in group.completions:
            assert c.token_ids.dtype == np.int64
            assert c.logprobs.dtype == np.float32
            assert c.token_ids.shape == c.logprobs.shape
            assert 1 <= len(c.token_ids) <= 64
            assert c.correct == (c.score == 1.0)
            assert c.info["expected"] == str(problem.answer)
    assert {c.score for g in groups for c in g.completions} == {1.0, -1.0}


def test_what_is_trained_on_are_the_ids_the_engine_sampled(runner):
    """Its log-probabilities are those of these very ids; text is for the environment only."""
    for group in collect_all(runner, JOB):
        for c in group.completions:
            expected = answer_logprobs(embedded_model(), group.prompt.token_ids, c.token_ids)
            np.testing.assert_allclose(c.logprobs, expected, atol=1e-4)
            assert (
                runner._episodes._tokenizer.decode(c.token_ids, skip_special_tokens=True) == c.text
            )


def test_text_is_never_tokenised_again(runner, monkeypatch):
    """With a tokenizer that reads every text differently the ids stay as they are."""
    expected = answers(collect_all(runner, JOB))

    class Forgetful:
        def decode(self, token_ids: Any, **options: Any) -> str:
            return "Answer: 1"

    monkeypatch.setattr(runner._episodes, "_tokenizer", Forgetful())
    groups = collect_all(runner, JOB)
    assert answers(groups) == expected
    assert {c.text for g in groups for c in g.completions} == {"Answer: 1"}


def test_the_environment_sees_the_answer_without_its_eos(runner):
    groups = collect_all(runner, JOB)
    ended = [c for g in groups for c in g.completions if c.finish_reason == "stop"]
    assert ended
    assert all(c.token_ids[-1] == EOS and "<eos>" not in c.text for c in ended)


def test_all_answers_of_a_group_are_played_from_the_same_reset(runner):
    runner.env = Bad("not at all")
    groups = collect_all(runner, JOB)
    problems = [sum_at(ref.index, split="train").text for ref in REFS]
    assert runner.env.seen[:3] == problems  # posed once each
    assert sorted(runner.env.seen[3:]) == sorted(problems * 4)  # and played once per answer
    for group, problem in zip(groups, problems, strict=True):
        assert group.prompt.text == problem + "\n"


def test_an_answer_cut_at_the_limit_is_truncated(runner):
    short = replace(JOB, sampling=Sampling(1.0, 1.0, 2))
    completions = [c for g in collect_all(runner, short) for c in g.completions]
    assert any(c.truncated for c in completions)
    assert all(len(c.token_ids) == 2 for c in completions if c.truncated)


@pytest.mark.parametrize("seconds", [0.0, 0.05, 60.0])
def test_what_runs_beside_a_problem_and_when_it_is_asked_changes_no_answer(runner, seconds):
    expected = answers(collect_all(runner, JOB))
    first, *others = (replace(JOB, refs=(ref,)) for ref in REFS)
    runner.collect(first, seconds=seconds)
    groups = list(runner.collect(others[1], seconds=seconds).groups)
    rest = collect_all(runner, others[0], seconds=seconds)
    known = {group.ref: group for group in (*groups, *rest)}
    for ref, other in zip(REFS, range(3), strict=True):
        if ref in known:  # the first may have come back at once
            assert answers([known[ref]]) == expected[4 * other : 4 * other + 4]
    assert len(known) >= 2


def test_no_two_problems_and_no_two_seeds_sample_alike(runner):
    same_text = tuple(replace(REFS[0], position=position) for position in range(3))
    asked = replace(JOB, refs=same_text)
    groups = collect_all(runner, asked) + collect_all(runner, replace(asked, seed=12))
    groups += collect_all(runner, asked)
    drawn = [tuple(map(tuple, answers([group]))) for group in groups]
    assert len(set(drawn)) == 6
    assert drawn[:3] == drawn[6:]


def test_jobs_add_up(runner):
    runner.collect(JOB, seconds=0.0)
    other = replace(JOB, refs=(ProblemRef(50, 5, 5),))
    assert [g.ref.position for g in collect_all(runner, other)] in ([0, 1, 2, 50], [1, 2, 50])


def test_what_is_withdrawn_does_not_come_back(runner):
    runner.collect(JOB, seconds=0.0)
    runner.withdraw()
    assert runner.collect(None).unfinished == 0
    assert answers(collect_all(runner, JOB)) == answers(collect_all(runner, JOB))


def test_weights_of_another_version_do_not_answer(runner):
    reply = runner.collect(replace(JOB, weights_version=3))
    assert reply.groups == ()
    assert "asked to sample with weights of version 3, but has version 0" in reply.broken
    runner.withdraw()
    assert collect_all(runner, replace(JOB, weights_version=0))


def test_evaluation_problems_are_posed_in_the_evaluation_environment(runner):
    held_out = replace(REFS[0], evaluation=True)
    (group,) = collect_all(runner, replace(JOB, refs=(held_out,)))
    assert group.prompt.text == sum_at(100, split="validation").text + "\n"
    (group,) = collect_all(runner, replace(JOB, refs=REFS[:1]))
    assert group.prompt.text == sum_at(100, split="train").text + "\n"


# -- Environments that fail ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("reset raises", "ZeroDivisionError: no problem here"),
        ("step raises", "ValueError: no verdict"),
        ("long prompt", "PromptTooLong"),
        ("NaN", None),
        ("None", None),
        ("inf", None),
    ],
)
def test_a_problem_that_goes_wrong_is_a_failed_group_and_harms_no_other(runner, how, reason):
    runner.env = Bad(how)
    groups = collect_all(runner, JOB)  # index 102 is divisible by 3
    assert [classify(g) == "failed" for g in groups] == [False, False, True]
    failed = groups[2]
    if reason is not None:
        assert reason in failed.failure
        assert failed.completions == ()
    assert failed.ref == REFS[2]
    for group in groups[:2]:
        assert len(group.completions) == 4


# -- RLlib's side -------------------------------------------------------------------------


def test_sample_gives_whole_groups_as_episodes_of_texts(runner):
    episodes = runner.sample(num_episodes=5)  # groups of 4
    assert len(episodes) == 8
    for episode in episodes:
        assert len(episode) == 1
        assert isinstance(episode.get_observations(0), str)
        assert isinstance(episode.get_actions(0), str)
        assert episode.get_rewards(0) in (1.0, -1.0)
        assert episode.is_terminated != episode.is_truncated
        ids = episode.get_extra_model_outputs("token_ids", 0)
        assert len(ids) == len(episode.get_extra_model_outputs("action_logp", 0))
    assert len({episode.get_observations(0) for episode in episodes}) == 2


def test_spaces_hold_what_problems_and_answers_are_made_of(runner):
    observation, action = runner.get_spaces()[DEFAULT_MODULE_ID]
    assert "12+3=?\n" in observation
    assert "½ ≤ \\frac{1}{2}" in action


def test_the_version_of_the_weights_follows_the_state_backwards_too(runner, initial_weights):
    for version in (7, 3, 0, 12):
        runner.set_state(
            {COMPONENT_RL_MODULE: {DEFAULT_MODULE_ID: initial_weights}, WEIGHTS_SEQ_NO: version}
        )
        assert runner.get_state() == {WEIGHTS_SEQ_NO: version}
        assert {g.weights_version for g in collect_all(runner, JOB)} == {version}


def test_a_state_without_weights_changes_nothing(runner):
    runner.set_state({WEIGHTS_SEQ_NO: 5})
    assert runner.get_state() == {WEIGHTS_SEQ_NO: 0}


def test_weights_may_come_by_reference(ray_session, runner, initial_weights):
    """Of one object in shared memory, whose arrays are read-only."""
    import ray

    modules = ray.put({DEFAULT_MODULE_ID: initial_weights})
    runner.set_state({COMPONENT_RL_MODULE: modules, WEIGHTS_SEQ_NO: 2})
    assert runner.get_state() == {WEIGHTS_SEQ_NO: 2}
    (group,) = collect_all(runner, replace(JOB, refs=REFS[:1]))
    expected = answer_logprobs(
        embedded_model(), group.prompt.token_ids, group.completions[0].token_ids
    )
    np.testing.assert_allclose(group.completions[0].logprobs, expected, atol=1e-4)


def test_an_engine_that_fails_is_reported_not_raised(runner, monkeypatch):
    """RLlib would put the runner to sleep and restart it."""

    class Broken(ScriptedEngine):
        def step(self) -> Any:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(runner, "_engine", Broken(runner._episodes._tokenizer, mixed))
    reply = runner.collect(JOB)
    assert (reply.groups, reply.error) == ((), None)
    assert reply.broken == "RuntimeError: out of memory"
    with pytest.raises(EngineError, match="out of memory"):
        runner.sample()


def test_with_remote_runners_the_local_one_has_no_engine(session_runner):
    from rllib_dapo.rollout.env_runner import DAPOEnvRunner

    config = session_runner.config.copy(copy_frozen=False).env_runners(num_env_runners=2)
    local = DAPOEnvRunner(config=config, worker_index=0, num_workers=2)
    local.assert_healthy()
    assert local.get_spaces()
    assert "no engine" in local.collect(JOB).broken
    local.stop()
