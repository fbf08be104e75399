"""Generated tokens a second: the whole system against vLLM alone.

vLLM starts once in a process, so each variant runs in a process of its own, and they take
turns. All use the same engine arguments, prompts, sampling parameters and seeds; the numbers
of tokens, which must be equal, are compared.

    bare           `LLM.generate`: no scoring, no messages
    bare, unseeded likewise, one random stream for all answers instead of one for each
    local          driver, runner and scoring in one process
    remote         the runner is a Ray actor
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rllib_dapo import DAPOConfig
from rllib_dapo.problem_source import ProblemSource

VARIANTS = ("bare", "bare, unseeded", "local", "remote")
_MARK = "measured: "

Measured = tuple[float, float, int]
"""Of one batch: seconds, CPU seconds of the process that drives, tokens."""


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


def run_bare(config: Any, batches: int, *, seeded: bool) -> list[Measured]:
    """Each batch by `LLM.generate`, the first one included."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from rllib_dapo.dapo_env_runner import DAPOEnvRunner
    from rllib_dapo.sampling_job import answer_seed, make_job

    runner = DAPOEnvRunner(config=config, worker_index=0, num_workers=0)
    llm = runner._engine._llm
    source = ProblemSource(config)
    results = []
    for _ in range(batches):
        refs = source.take(config.groups_per_batch)
        job = make_job(config, refs, seed=config.seed, weights_version=0)
        prompts = [{"prompt_token_ids": runner._episodes.pose(r).token_ids.tolist()} for r in refs]
        params = [
            SamplingParams(
                n=job.group_size,
                temperature=job.sampling.temperature,
                top_p=job.sampling.top_p,
                max_tokens=job.sampling.max_tokens,
                seed=answer_seed(job, ref) if seeded else None,
                stop_token_ids=list(runner._facts.stop_token_ids),
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            for ref in refs
        ]
        started, cpu = time.perf_counter(), time.process_time()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        count = sum(len(o.token_ids) for out in outputs for o in out.outputs)
        results.append((seconds, cpu, count))
    runner.stop()
    return results


def run_system(config: Any, batches: int, *, remote: bool) -> list[Measured]:
    """Each batch by the driver's loop, the first one included."""
    import ray
    from ray.rllib.env.env_runner_group import EnvRunnerGroup

    from rllib_dapo.rollouts import Rollouts
    from rllib_dapo.runner_calls import LocalCalls, RemoteCalls
    from rllib_dapo.runner_pool import RunnerPool

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    config = config.copy(copy_frozen=False).env_runners(num_env_runners=int(remote))
    group = EnvRunnerGroup(config=config, local_env_runner=not remote)
    calls = RemoteCalls(group) if remote else LocalCalls(group.local_env_runner)
    pool = RunnerPool(calls, config, seed=config.seed, equip=lambda numbers: [])
    rollouts = Rollouts(config, pool, ProblemSource(config))
    results = []
    for _ in range(batches):
        started, cpu = time.perf_counter(), time.process_time()
        batch = rollouts.next_batch(lambda progress: None)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        count = sum(len(c.token_ids) for g in batch.groups for c in g.completions)
        results.append((seconds, cpu, count))
    group.stop()
    ray.shutdown()
    return results


def run_variant(name: str, problems: int, batches: int) -> None:
    """Measure one variant in this process, and print its numbers for `measure`."""
    config = engine_config(problems=problems)
    if name.startswith("bare"):
        results = run_bare(config, batches, seeded=name == "bare")
    else:
        results = run_system(config, batches, remote=name == "remote")
    print(_MARK + json.dumps(results), flush=True)


def measure(script: Path, *, problems: int, batches: int, repeats: int) -> dict[str, Any]:
    """All variants in turns.

    Returns:
        By variant, tokens/s and CPU seconds of each batch but the first one of each process.
    """
    tokens: dict[str, list[int]] = {name: [] for name in VARIANTS}
    speeds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    cpu: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(repeats):
        for name in VARIANTS:
            command = [sys.executable, str(script), "--variant", name]
            command += ["--problems", str(problems), "--batches", str(batches + 1)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
            if done.returncode or not lines:
                raise RuntimeError(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
            for seconds, cpu_s, count in json.loads(lines[0].removeprefix(_MARK))[1:]:
                tokens[name].append(count)
                cpu[name].append(cpu_s)
                speeds[name].append(count / seconds)
            print(f"{name}: {[round(s) for s in speeds[name][-batches:]]} tokens/s", flush=True)
    same = tokens["bare"] == tokens["local"] == tokens["remote"]
    return {
        "problems": problems,
        "group_size": 16,
        "tokens": tokens["bare"],
        "same_tokens": same,
        "tokens_per_s": speeds,
        "driving_process_cpu_s": cpu,
    }
