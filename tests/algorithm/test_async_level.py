"""The next batch is sampled while the learner trains: one policy version old, never between two.

One remote runner with a scripted engine; RLlib, learner and state are real.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from faulty_runners import events, faulty_runner
from learners import parameters
from scripted_engine import NO_MODEL

from rllib_dapo.algorithm.dapo import DAPOConfig
from rllib_dapo.errors import SamplingError, SettingError, TrainingError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SETTINGS = {
    **NO_MODEL,
    "async_level": 1,
    "group_size": 4,
    "groups_per_batch": 4,
    "minibatch_size": 8,
    "max_staleness": 1,
    "progress": "off",
}


@pytest.fixture(scope="module")
def algorithm(ray_session, one_thread, tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lead")
    config = (
        DAPOConfig()
        .environment("rllib_dapo/Arithmetic-v0")
        .env_runners(env_runner_cls=faulty_runner(folder, step_s=0.001), num_env_runners=1)
        .debugging(seed=1)
        .update_from_dict({"model": str(tiny_model), **SETTINGS})
    )
    algorithm = config.build_algo()
    algorithm.folder = folder
    yield algorithm
    algorithm.stop()


def train(algorithm: Any, iterations: int = 1) -> list[Any]:
    """What was trained on: position, version and answers of each group, and the weights then."""
    seen = []
    update = algorithm._run_learners

    def recorded(groups: Any) -> Any:
        seen.append([
            (g.ref.position, g.weights_version, [c.token_ids.tolist() for c in g.completions])
            for g in groups
        ])  # fmt: skip
        return update(groups)

    algorithm._run_learners = recorded
    try:
        for _ in range(iterations):
            algorithm.train()
    finally:
        del algorithm._run_learners
    return [*seen, parameters(algorithm.learner_group._learner).tolist()]


def learning_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("learning")]


def test_batches_are_one_version_old_and_left_over_groups_one_more(algorithm):
    *batches, _ = train(algorithm, 5)
    new = [max(version for _, version, _ in batch) for batch in batches]
    assert new == [0, 0, 1, 2, 3]  # the first is not sampled ahead
    for newest, batch in zip(new, batches, strict=True):
        assert all(newest - 1 <= version <= newest for _, version, _ in batch)
    assert algorithm._pool.weights_version == 5


def test_weights_change_between_batches_only(algorithm):
    """Everything that is asked for a batch is asked between two loads."""
    train(algorithm, 3)
    ahead = algorithm.get_state()["dapo"]["next_batch"]
    (version,) = {g.weights_version for g in ahead.sampled}
    assert version == algorithm._pool.weights_version - 1
    log = events(algorithm.folder, "asked", "loaded")
    versions = [event["version"] for event in log]
    assert versions == sorted(versions)
    assert log[-1] == {**log[-1], "kind": "loaded", "version": version + 1}


def test_learner_and_runners_work_at_the_same_time(algorithm, monkeypatch):
    """Each waits for a sign of the other; one after the other they would wait for ever."""
    learning, sampling = threading.Event(), threading.Event()
    update, sample = algorithm._run_learners, algorithm._rollouts.sample

    def waiting_update(groups: Any) -> Any:
        learning.set()
        assert sampling.wait(60)
        return update(groups)

    def waiting_sample(show: Any) -> Any:
        sampling.set()
        assert learning.wait(60)
        return sample(show)

    train(algorithm)
    monkeypatch.setattr(algorithm, "_run_learners", waiting_update)
    monkeypatch.setattr(algorithm._rollouts, "sample", waiting_sample)
    algorithm.train()
    assert not learning_threads()


def test_a_state_holds_the_batch_in_hand(algorithm):
    """Going on from it is the same as never having stopped."""
    train(algorithm)
    state = algorithm.get_state()
    assert state["dapo"]["next_batch"] is not None
    went_on = train(algorithm, 3)
    algorithm.set_state(state)
    assert train(algorithm, 3) == went_on


def test_a_batch_that_cannot_be_filled_is_reported_when_the_learner_is_done(algorithm, monkeypatch):
    train(algorithm)
    state, before = (
        algorithm.get_state(),
        parameters(algorithm.learner_group._learner).clone(),
    )

    def empty(show: Any) -> None:
        raise SamplingError("kept 0 of 4 groups")

    monkeypatch.setattr(algorithm._rollouts, "sample", empty)
    with pytest.raises(SamplingError, match="kept 0 of 4"):
        algorithm.train()
    monkeypatch.undo()
    assert not learning_threads()
    assert not parameters(algorithm.learner_group._learner).equal(before)
    algorithm.set_state(state)
    train(algorithm)


def test_what_the_learner_raises_is_raised_and_leaves_no_thread(algorithm, monkeypatch):
    state = algorithm.get_state()

    def broken(groups: Any) -> None:
        raise TrainingError("gradients are not finite")

    monkeypatch.setattr(algorithm, "_run_learners", broken)
    with pytest.raises(TrainingError, match="not finite"):
        algorithm.train()
    monkeypatch.undo()
    assert not learning_threads()
    algorithm.set_state(state)
    train(algorithm)


def test_when_both_fail_the_learners_error_is_raised(algorithm, monkeypatch):
    """A dead learner is what ends the run."""
    train(algorithm)
    state = algorithm.get_state()

    def broken(groups: Any) -> None:
        raise TrainingError("gradients are not finite")

    def empty(show: Any) -> None:
        raise SamplingError("kept 0 of 4 groups")

    monkeypatch.setattr(algorithm, "_run_learners", broken)
    monkeypatch.setattr(algorithm._rollouts, "sample", empty)
    with pytest.raises(TrainingError, match="not finite"):
        algorithm.train()
    monkeypatch.undo()
    assert not learning_threads()
    algorithm.set_state(state)
    train(algorithm)


def test_a_lead_without_remote_runners_is_refused(tiny_model):
    config = DAPOConfig().environment("rllib_dapo/Arithmetic-v0")
    config.update_from_dict({"model": str(tiny_model), **SETTINGS})
    with pytest.raises(SettingError, match="num_env_runners") as caught:
        config.validate()
    assert caught.value.setting == "async_level"
