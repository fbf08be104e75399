"""Learners that are killed: the run ends at once, and Tune goes on from its last checkpoint."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import scripted_engine
from learner_groups import learner_group
from ray import cloudpickle
from reference_model import batch_of, random_rows
from scripted_engine import NO_MODEL, mixed, scripted_runner

from rllib_dapo import metrics
from rllib_dapo.errors import TrainingError
from rllib_dapo.learner.rl_batch import to_multi_agent_batch
from rllib_dapo.model.batching import split_for_ranks

# Collectives wait half an hour for a partner that does not come.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def update(group: Any, policy: Any) -> Any:
    shares = split_for_ranks(batch_of(policy, random_rows([4, 2, 3, 4])), len(group))
    batches = [to_multi_agent_batch(share) for share in shares]
    return group.update(batches=batches, num_total_minibatches=1, num_epochs=1)


@pytest.fixture
def pair(ray_session, tiny_model):
    group = learner_group(tiny_model, 2)
    yield group
    group.shutdown()


def test_a_dead_learner_ends_the_update_and_every_later_one(pair, policy):
    """RLlib would go on with the other one, and with its half of the batch."""
    processes = [result.get() for result in pair.foreach_learner(lambda _: os.getpid())]
    assert len(update(pair, policy)) == 2
    os.kill(processes[1], signal.SIGKILL)
    with pytest.raises(TrainingError, match=r"was lost.*Restore the last checkpoint"):
        update(pair, policy)
    with pytest.raises(TrainingError, match=r"num_learners=2 learners, \d were lost before"):
        update(pair, policy)


def test_a_learner_that_waits_for_a_dead_one_is_not_waited_for(pair):
    """As in a collective call over NCCL, which does not notice that its partner is gone."""

    def wait_or_die(learner: Any) -> None:
        if learner._learner_index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(3600)

    with pytest.raises(TrainingError, match="learner 1 was lost"):
        pair.foreach_learner(wait_or_die)


def test_tune_restarts_a_run_whose_learner_died_from_its_last_checkpoint(
    ray_session, tiny_model, tmp_path
):
    from rllib_dapo.cli.experiment_file import Experiment
    from rllib_dapo.cli.tuner import to_tuner

    done = tmp_path / "killed"

    def kill_once(*, algorithm: Any, result: dict[str, Any], **_: Any) -> None:
        if result["training_iteration"] == 2 and not done.exists():
            done.touch()
            (process,) = algorithm.learner_group.foreach_learner(lambda _: os.getpid())
            os.kill(process.get(), signal.SIGKILL)

    cloudpickle.register_pickle_by_value(scripted_engine)
    config = {
        **NO_MODEL,
        "env": "rllib_dapo/Arithmetic-v0",
        "env_runner_cls": scripted_runner(mixed),
        "callbacks_on_train_result": kill_once,
        "model": str(tiny_model),
        "num_learners": 1,
        "group_size": 4,
        "groups_per_batch": 4,
        "minibatch_size": 8,
        "progress": "off",
    }
    tuner = to_tuner(
        Experiment(
            name="killed",
            config=config,
            stop={"training_iteration": 4},
            checkpoint_config={"checkpoint_frequency": 1},
            storage_path=str(tmp_path),
            max_failures=1,
        )
    )
    (result,) = tuner.fit()
    assert done.exists()
    assert result.error is None
    rows = result.metrics_dataframe
    assert rows["training_iteration"].tolist() == [1, 2, 3, 4]  # none was lost or done twice
    position = rows[f"{metrics.ROLLOUT}/problem_stream_position"]
    assert position.tolist() == [4, 8, 12, 16]
