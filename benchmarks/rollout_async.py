"""One batch ahead against one after the other, with phases whose times are set.

The real algorithm with one remote runner; its scripted engine takes `a` seconds for a batch,
the learner sleeps for `b` seconds instead of training. What an iteration takes beyond them is
the driver's, Ray's and RLlib's own.
"""

from __future__ import annotations

import time
from typing import Any

from rollout_driver import scripted_config
from rollout_hosts import ScriptedRunner

from rllib_dapo.learner.torch_learner import DAPOTorchLearner
from rllib_dapo.rollout.engine.scripted import CompletionLengths, StepTime

TOKENS = 60  # of every answer


class SleepingLearner(DAPOTorchLearner):
    """Sleeps for `learner_config_dict["seconds"]` instead of training."""

    def update(self, **kwargs: Any) -> Any:
        """Sleep; the weights count as new ones."""
        time.sleep(self.config.learner_config_dict["seconds"])
        self._weights_seq_no += 1
        return self.metrics.reduce()


def iteration_seconds(
    sample_s: float, learn_s: float, *, lead: int, iterations: int
) -> list[float]:
    """Seconds of each iteration but the first, which has nothing to overlap with."""
    engine = {
        "lengths": CompletionLengths(median=TOKENS),
        "step_time": StepTime(fixed_s=sample_s / TOKENS),
        "capacity": 512,
    }
    config = scripted_config(
        groups=32,
        group_size=16,
        rate=1.0,
        dynamic_sampling=False,
        engine_kwargs=engine,
        max_completion_length=64,
        soft_overlong_cache=16,
        async_level=lead,
        old_logprobs="learner",
        importance_sampling="token",
        sync_check_interval=0,
        learner_config_dict={"seconds": learn_s},
        learner_class=SleepingLearner,
    ).env_runners(env_runner_cls=ScriptedRunner, num_env_runners=1)
    algorithm = config.build_algo()
    seconds = []
    try:
        for _ in range(iterations + 1):
            started = time.perf_counter()
            algorithm.train()
            seconds.append(time.perf_counter() - started)
    finally:
        algorithm.stop()
    return seconds[1:]


def measure(
    cases: tuple[tuple[float, float], ...] = ((3.0, 3.0), (3.0, 1.5), (1.5, 3.0)),
    *,
    iterations: int = 4,
) -> list[dict[str, Any]]:
    """Each case without and with a lead."""
    results = []
    for sample_s, learn_s in cases:
        seconds = {}
        for lead in (0, 1):
            key = f"async_level {lead}"
            seconds[key] = iteration_seconds(sample_s, learn_s, lead=lead, iterations=iterations)
            print(f"a={sample_s} b={learn_s} {key}: {[round(s, 2) for s in seconds[key]]}")
        results.append({"sample_s": sample_s, "learn_s": learn_s, "iteration_s": seconds})
    return results
