"""What tests share: one real engine, one Ray, and small models to train.

vLLM can be started only once in a process, so every test that needs an engine in the main
process takes the fixture `runner`.
"""

from __future__ import annotations

import os

# Before torch is imported: threads that wait must sleep, or engine, learner and Ray's
# workers, each with a pool of its own, slow each other down many times.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here needs a download
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Torch with one thread: exact comparisons, and no pools beside those of other tests."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One Ray for all tests that need it."""
    import ray

    ray.init(
        num_cpus=3,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=300 * 2**20,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def session_runner() -> Iterator[Any]:
    """The one runner with a real vLLM engine, on the embedded model; needs no Ray."""
    from rllib_dapo.algorithm.dapo import DAPOConfig
    from rllib_dapo.rollout.env_runner import DAPOEnvRunner

    cpus = os.sched_getaffinity(0)
    config = (
        DAPOConfig()
        .environment("rllib_dapo/Arithmetic-v0")
        .training(group_size=4, max_prompt_length=192, max_completion_length=64)
        .evaluation(evaluation_config={"env_config": {"split": "validation"}})
        .debugging(seed=0)
    )
    runner = DAPOEnvRunner(config=config, worker_index=0, num_workers=0)
    # vLLM pins this thread to one core, and child processes inherit that.
    os.sched_setaffinity(0, cpus)
    yield runner
    runner.stop()


@pytest.fixture
def runner(session_runner: Any, initial_weights: dict[str, Any]) -> Iterator[Any]:
    """The engine's runner, with the initial weights as version 0 and its own environments."""
    from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
    from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

    environments = session_runner.env, session_runner._evaluation_env
    session_runner.withdraw()
    session_runner._engine.abort_all()
    session_runner.set_state(
        {COMPONENT_RL_MODULE: {DEFAULT_MODULE_ID: initial_weights}, WEIGHTS_SEQ_NO: 0}
    )
    yield session_runner
    session_runner.env, session_runner._evaluation_env = environments


@pytest.fixture(scope="session")
def initial_weights() -> dict[str, Any]:
    """The embedded model's weights by their names in the RLModule's state."""
    from reference_model import embedded_model

    state = embedded_model().state_dict()
    return {f"causal_lm.{name}": tensor.numpy() for name, tensor in state.items()}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Qwen2 (about 20k parameters) and the embedded tokenizer."""
    from reference_model import save_tiny_model

    return save_tiny_model(tmp_path_factory.mktemp("tiny_model"))


@pytest.fixture(scope="session")
def policy(tiny_model: Path) -> Any:
    """The tiny model in transformers."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_model).eval()


@pytest.fixture(scope="session")
def batch(policy: Any) -> Any:
    """Answers of uneven lengths, with the tiny model's own log-probabilities."""
    from reference_model import uneven_batch

    return uneven_batch(policy)
