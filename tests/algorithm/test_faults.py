"""Runners that are real actors are really killed, stopped and broken; the run does not notice.

Each run has a twin without faults and without remote runners. After every iteration the two
have trained on the same groups with the same answers, and have the same weights.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import ray
from faulty_runners import arm, events, faulty_runner
from learners import parameters
from scripted_engine import NO_MODEL

from rllib_dapo import metrics
from rllib_dapo.algorithm.dapo import DAPOConfig

# An actor takes seconds to start again, and there are many.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SETTINGS = {
    **NO_MODEL,
    "group_size": 4,
    "groups_per_batch": 8,
    "minibatch_size": 16,
    "warmup_iterations": 0,
    "progress": "off",
    "evaluation_duration": 12,
    "evaluation_samples": 2,
    "runner_timeout_s": 4.0,
    "runner_restart_timeout_s": 120.0,
}


def build(model: Path, folder: Path, runners: int, **more: Any) -> Any:
    poison, settings = more.pop("poison", None), {**SETTINGS, **more}
    runner = faulty_runner(folder, step_s=0.003 if runners else 0.0, poison=poison)
    config = (
        DAPOConfig()
        .environment("rllib_dapo/Arithmetic-v0")
        .env_runners(env_runner_cls=runner, num_env_runners=runners, num_cpus_per_env_runner=0.5)
        .debugging(seed=1)
        .update_from_dict({"model": str(model), **settings})
    )
    return config.build_algo()


def record_batches(algorithm: Any) -> list[Any]:
    """A list that gets each batch the algorithm trains on: positions, answers, scores."""
    batches: list[Any] = []
    run_learners = algorithm._run_learners

    def recorded(groups: Any) -> Any:
        batches.append([
            (g.ref.position, [(c.token_ids.tolist(), c.score) for c in g.completions])
            for g in groups
        ])  # fmt: skip
        return run_learners(groups)

    algorithm._run_learners = recorded
    return batches


class Twins:
    """A run with remote runners to which faults happen, and one without either."""

    def __init__(self, model: Path, folder: Path, runners: int) -> None:
        self.folder = folder
        self.recreated: list[int] = []
        (folder / "calm").mkdir()
        self.run = build(model, folder, runners)
        self.calm = build(model, folder / "calm", 0)
        self.run.config._is_frozen = False
        self.run.config.callbacks_on_env_runners_recreated = (
            lambda env_runner_indices, **_: self.recreated.extend(env_runner_indices)
        )
        self._batches = record_batches(self.run), record_batches(self.calm)

    @property
    def lost(self) -> Counter[str]:
        return self.run._pool.lost

    def in_service(self) -> int:
        """The number of a runner that is there; waits for one."""
        while not (runners := self.run._pool.runners):
            self.run._pool.poll()
        return max(runners)

    def process(self, runner: int) -> int:
        return [e["process"] for e in events(self.folder, "started") if e["runner"] == runner][-1]

    def train(self) -> Any:
        result = self.run.train()
        self.calm.train()
        mine, calm = (batches[-1] for batches in self._batches)
        assert mine == calm
        weights = [parameters(algo.learner_group._learner) for algo in (self.run, self.calm)]
        assert weights[0].equal(weights[1])
        return result

    def stop(self) -> None:
        self.run.stop()
        self.calm.stop()


@pytest.fixture(scope="module")
def twins(ray_session, one_thread, tiny_model, tmp_path_factory):
    twins = Twins(tiny_model, tmp_path_factory.mktemp("faults"), 2)
    yield twins
    twins.stop()


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def strike(twins: Twins, how: str) -> None:
    """Prepare a fault for a runner that is in service."""
    runner = twins.in_service()
    if how in ("step", "load"):
        arm(twins.folder, runner, "kill", how)
    elif how == "idle":
        os.kill(twins.process(runner), signal.SIGKILL)
    elif how == "leaves":  # as when its node goes
        ray.kill(twins.run.env_runner_group._worker_manager.actors()[runner], no_restart=False)
    else:
        arm(twins.folder, runner, how)


def test_without_faults_remote_runners_train_on_what_the_local_one_trains_on(twins):
    twins.train()
    assert not twins.lost


def test_runners_killed_ten_times_in_ten_iterations_change_nothing(twins):
    """In the middle of answers, while they take weights over, and between iterations."""
    before = twins.lost.copy()
    for how in ("step", "step", "load", "step", "idle", "step", "load", "step", "step", "step"):
        strike(twins, how)
        twins.train()
    assert twins.lost - before == {"died": 8, "failed": 2}  # those that took weights over
    trained = [position for batch in twins._batches[0] for position, _ in batch]
    assert max(Counter(trained).values()) == 1  # nothing counts twice
    assert sorted(trained) == trained
    assert not list(twins.folder.glob("step-*"))  # each fault came true
    assert not list(twins.folder.glob("load-*"))


@pytest.mark.parametrize(
    ("how", "kind"), [("throw", "failed"), ("hang", "hung"), ("stop", "hung"), ("leaves", "died")]
)
def test_a_runner_that_breaks_is_replaced_and_nothing_changes(twins, how, kind):
    before = twins.lost.copy()
    runner = twins.in_service()
    gone = twins.process(runner)
    strike(twins, how)
    twins.train()
    assert twins.lost - before == {kind: 1}
    while is_there(gone):  # even a stopped process ends
        twins.run._pool.poll()


def test_a_runner_whose_new_start_fails_is_started_once_more(twins):
    """Ray gives an actor up whose constructor raises."""
    runner = twins.in_service()
    started = len(events(twins.folder, "started"))
    arm(twins.folder, runner, "throw", "start")
    arm(twins.folder, runner, "kill", "step")
    twins.train()
    while runner not in twins.run._pool.runners:
        twins.run._pool.poll()
    assert len(events(twins.folder, "started")) >= started + 2
    twins.train()


def test_a_runner_killed_during_an_evaluation_does_not_change_its_result(twins):
    strike(twins, "step")
    before = twins.lost.copy()
    report, calm = twins.run.evaluate(), twins.calm.evaluate()
    for result in (report, calm):
        result.pop("evaluate_s")
    assert report == calm
    assert twins.lost - before == {"died": 1}
    twins.train()


def test_runners_that_came_back_answered_with_the_present_weights_only(twins):
    """And RLlib's callback was told of each of them."""
    twins.in_service()
    twins.train()
    asked = [event["version"] for event in events(twins.folder, "asked")]
    assert asked == sorted(asked)
    assert asked[-1] > asked[0]
    returned = len(events(twins.folder, "started")) - 2
    assert len(twins.recreated) >= returned - 2 > 0  # those on their way are not told yet
    assert set(twins.recreated) == {1, 2}


def test_a_single_runner_is_waited_for_and_a_problem_that_kills_it_is_given_up(
    ray_session, one_thread, tiny_model, tmp_path
):
    """The problem takes others down with it twice, and is then asked alone."""
    from rllib_dapo.envs.arithmetic import ArithmeticEnv

    algorithm = build(tiny_model, tmp_path, 0)
    ref = algorithm._problems.take(4)[-1]
    algorithm.stop()
    poison = str(ArithmeticEnv().reset(seed=ref.seed, options=ref.options)[0]).strip()
    algorithm = build(tiny_model, tmp_path, 1, poison=poison, max_problem_attempts=3)
    batches = record_batches(algorithm)
    try:
        result = algorithm.train()[metrics.ROLLOUT]
        assert result["groups_failed"] == 1
        assert result["groups_kept"] == 8
        assert algorithm._pool.lost == {"died": 3}
        trained = [position for position, _ in batches[0]]
        assert ref.position not in trained
        answered = Counter(e["prompt"] for e in events(tmp_path, "asked"))
        assert answered[poison] == 3
        assert len(trained) == len(set(trained)) == 8
    finally:
        algorithm.stop()
