"""Generated tokens a second: the whole system against vLLM alone.

Both use the same engine object, prompts, sampling parameters and seeds, and take turns batch by
batch; the tokens, which must be the same, are counted.

    bare           `LLM.generate` on the system's own `vllm.LLM`: no scoring, no messages
    bare, unseeded likewise, one random stream for all answers instead of one for each
    system         driver, pool, runner and scoring; the runner in this process (`local`), or a
                   Ray actor (`remote`)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rollout_batches import settled_batch

from rllib_dapo import DAPOConfig
from rllib_dapo.rollout.problem_source import ProblemSource
from rllib_dapo.rollout.sampling_job import completion_seed, make_job
from rllib_dapo.types import ProblemRef

Measured = tuple[float, float, int]
"""Of one batch: seconds, CPU seconds of the processes that work on it, tokens."""


def engine_config(*, problems: int, **settings: Any) -> Any:
    """The embedded model on its own task; a batch is so many problems, whatever they show."""
    return (
        DAPOConfig()
        .environment("rllib_dapo/Arithmetic-v0")
        .training(
            model="embedded",
            groups_per_batch=problems,
            group_size=16,
            **{"dynamic_sampling": False, "engine_cpu_threads": 1, **settings},
        )
        .debugging(seed=0)
    )


def timed(work: Callable[[], int], cpu_clock: Callable[[], float] = time.process_time) -> Measured:
    """Measure what returns a number of tokens."""
    cpu, started = cpu_clock(), time.perf_counter()
    tokens = work()
    seconds = time.perf_counter() - started
    return seconds, cpu_clock() - cpu, tokens


def generate(runner: Any, refs: tuple[ProblemRef, ...], *, seeded: bool) -> Measured:
    """A batch by `LLM.generate`, where the runner is."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    config = runner.config
    job = make_job(config, refs, seed=config.seed, weights_version=0)
    prompts = [{"prompt_token_ids": runner._episodes.pose(r).token_ids.tolist()} for r in refs]
    params = [
        SamplingParams(
            n=job.group_size,
            temperature=job.sampling.temperature,
            top_p=job.sampling.top_p,
            max_tokens=job.sampling.max_tokens,
            seed=completion_seed(job, ref) if seeded else None,
            stop_token_ids=list(runner._facts.stop_token_ids),
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        for ref in refs
    ]

    def work(engine: Any) -> int:
        outputs = engine._llm.generate(prompts, params, use_tqdm=False)
        return sum(len(answer.token_ids) for output in outputs for answer in output.outputs)

    return timed(lambda: runner._running_pipeline().between_steps(work))


def measure(*, remote: bool, problems: int, batches: int) -> dict[str, Any]:
    """Tokens/s and CPU seconds of each batch but the first, by variant."""
    from ray.rllib.env.env_runner_group import EnvRunnerGroup

    from rllib_dapo.rollout.rollouts import Rollouts
    from rllib_dapo.rollout.runner_calls import LocalCalls, RemoteCalls
    from rllib_dapo.rollout.runner_pool import RunnerPool

    config = engine_config(problems=problems).env_runners(num_env_runners=int(remote))
    group = EnvRunnerGroup(config=config, local_env_runner=not remote)
    local = group.local_env_runner
    calls = RemoteCalls(group, config.runner_timeout_s) if remote else LocalCalls(local)
    pool = RunnerPool(calls, config, seed=config.seed, send_weights=lambda numbers: [])
    rollouts = Rollouts(config, pool, ProblemSource(config))
    source = ProblemSource(config)

    def system() -> int:
        batch = settled_batch(rollouts)
        return sum(len(c.token_ids) for g in batch.groups for c in g.completions)

    def cpu_clock() -> float:
        actors = group.foreach_env_runner(
            lambda runner: time.process_time(), local_env_runner=False
        )
        return time.process_time() + sum(actors)

    results: dict[str, list[Measured]] = {"bare": [], "system": [], "bare, unseeded": []}
    for batch in range(batches + 1):
        refs = source.take(problems)

        def bare(seeded: bool, refs: tuple[ProblemRef, ...] = refs) -> Measured:
            (measured,) = group.foreach_env_runner(
                lambda runner: generate(runner, refs, seeded=seeded)
            )
            return measured

        turns = {
            "bare": lambda: bare(seeded=True),
            "system": lambda: timed(system, cpu_clock),
            "bare, unseeded": lambda: bare(seeded=False),
        }
        names = list(turns)
        for name in names if batch % 2 else names[::-1]:
            results[name].append(turns[name]())
        speeds = {name: round(rows[-1][2] / rows[-1][0]) for name, rows in results.items()}
        print(f"{'remote' if remote else 'local'}: {speeds} tokens/s", flush=True)
    group.stop()
    counted = {name: rows[1:] for name, rows in results.items()}
    tokens = {name: [row[2] for row in rows] for name, rows in counted.items()}
    return {
        "problems": problems,
        "group_size": 16,
        "tokens": tokens["bare"],
        "same_tokens": tokens["bare"] == tokens["system"],
        "tokens_per_s": {name: [n / s for s, _, n in rows] for name, rows in counted.items()},
        "cpu_s": {name: [cpu for _, cpu, _ in rows] for name, rows in counted.items()},
    }
