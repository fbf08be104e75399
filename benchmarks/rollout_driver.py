"""What a step costs the driver: many scripted runners, long answers, real messages."""

from __future__ import annotations

import cProfile
import pstats
import time
from pathlib import Path
from typing import Any

from rollout_batches import settled_batch
from rollout_env import SignalRateEnv
from rollout_hosts import HostedRunnerGroup, ScriptedRunner

from rllib_dapo import DAPOConfig
from rllib_dapo.rollout.engine.scripted import CompletionLengths, StepTime
from rllib_dapo.rollout.metrics import batch_metrics
from rllib_dapo.rollout.problem_source import ProblemSource
from rllib_dapo.rollout.rollouts import RolloutBatch, Rollouts
from rllib_dapo.rollout.runner_calls import RemoteCalls
from rllib_dapo.rollout.runner_pool import RunnerPool
from rllib_dapo.rollout.token_batch import RewardShaping, make_token_batch

LENGTHS = CompletionLengths(median=2000, sigma=0.8, endless=0.03)
LIMIT = 8192  # tokens
# A step of 32 tokens takes so long: an answer at the limit takes about 12 s, which leaves two
# cores time for what 64 runners' own processes would do.
TOKENS_PER_STEP = 32
STEP_TIME = StepTime(fixed_s=0.04, per_completion_s=2e-5)


def scripted_config(*, groups: int, group_size: int, rate: float, **settings: Any) -> Any:
    """A configuration whose runners have scripted engines."""
    engine = {
        "lengths": LENGTHS,
        "step_time": STEP_TIME,
        "tokens_per_step": TOKENS_PER_STEP,
        "capacity": 256,
    }
    return (
        DAPOConfig()
        .environment(SignalRateEnv, env_config={"rate": rate})
        .env_runners(env_runner_cls=ScriptedRunner)
        .training(
            **{
                "model": "embedded",
                "groups_per_batch": groups,
                "group_size": group_size,
                "max_completion_length": LIMIT,
                "soft_overlong_cache": 1024,
                "engine_kwargs": engine,
                **settings,
            }
        )
        .debugging(seed=0)
    )


def make_rollouts(config: Any, group: Any) -> Rollouts:
    """The driver's own sampling loop over a group of runners."""
    calls = RemoteCalls(group, config.runner_timeout_s)
    pool = RunnerPool(calls, config, seed=0, send_weights=lambda numbers: [])
    return Rollouts(config, pool, ProblemSource(config))


class CountingGroup(HostedRunnerGroup):
    """Counts the messages that are sent."""

    calls = 0

    def foreach_env_runner_async(self, *args: Any, **kwargs: Any) -> int:
        """RLlib's, counted."""
        sent = super().foreach_env_runner_async(*args, **kwargs)
        self.calls += sent
        return sent


def payload(batch: RolloutBatch) -> dict[str, float]:
    """What travelled for a batch: answers, tokens and bytes of their arrays and texts."""
    answers = [c for group in batch.sampled for c in group.completions]
    tokens = sum(len(c.token_ids) for c in answers)
    return {
        "groups": len(batch.sampled),
        "answers": len(answers),
        "tokens": tokens,
        "array_bytes": sum(c.token_ids.nbytes + c.logprobs.nbytes for c in answers),
        "text_bytes": sum(len(c.text.encode()) for c in answers),
        "truncated": sum(c.truncated for c in answers) / max(1, len(answers)),
    }


def measure(
    runners: int, *, groups: int = 512, group_size: int = 16, repeats: int = 3, profile: Path | None
) -> dict[str, Any]:
    """CPU and wall seconds of the driver for full steps.

    The first step warms up. `beyond_runners_s` is by how much the step took longer than the
    busiest engine computed: messages, scoring of the last answers, and what two cores make
    hosts and driver wait for each other.
    """
    config = scripted_config(groups=groups, group_size=group_size, rate=1.0, dynamic_sampling=False)
    group = CountingGroup(config, runners)
    shaping = RewardShaping(LIMIT, 1024, False, True, "group_mean")
    steps = []
    profiler = cProfile.Profile()
    try:
        rollouts = make_rollouts(config, group)
        for step in range(repeats + 1):
            calls, busy = group.calls, engine_seconds(rollouts)
            wall, cpu = time.perf_counter(), time.process_time()
            if profile is not None and step == repeats:
                profiler.enable()
            batch = settled_batch(rollouts)
            profiler.disable()
            sampled_wall, sampled_cpu = time.perf_counter(), time.process_time()
            values = batch_metrics(batch.sampled, batch.groups, batch.counts, shaping, ())
            counted_cpu = time.process_time()
            tokens = make_token_batch(batch.groups, shaping)
            batched_cpu = time.process_time()
            own = engine_seconds(rollouts)
            longest = max(own[i] - busy.get(i, 0.0) for i in own)
            steps.append(
                {
                    "sample_cpu_s": sampled_cpu - cpu,
                    "metrics_cpu_s": counted_cpu - sampled_cpu,
                    "batch_cpu_s": batched_cpu - counted_cpu,
                    "wall_s": sampled_wall - wall,
                    "engine_s": longest,
                    "beyond_runners_s": sampled_wall - wall - longest,
                    "messages": group.calls - calls,
                    "tokens": int(tokens.completion_lengths.sum()),
                    **payload(batch),
                }
            )
            assert int(values["num_env_steps_sampled"]) == groups * group_size
            del batch, tokens
            print(f"{runners} runners: {steps[-1]}", flush=True)
        if profile is not None:
            with profile.open("w", encoding="utf-8") as out:
                pstats.Stats(profiler, stream=out).sort_stats("tottime").print_stats(40)
        return {"runners": runners, "hosts": group.usage(), "steps": steps[1:]}
    finally:
        group.stop()


def engine_seconds(rollouts: Rollouts) -> dict[int, float]:
    """Seconds that each runner's engine has computed so far, as last reported."""
    return {number: runner.busy_s for number, runner in rollouts._pool._runners.items()}
