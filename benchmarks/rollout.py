"""How well rollouts use their engines, and what they cost the driver.

    python benchmarks/rollout.py --out docs/images        # all parts, about half an hour
    python benchmarks/rollout.py --part driver --part lead

    local    generated tokens/s of the whole system against `vllm.LLM.generate`
    remote   the same with the runner in a Ray actor
    groups   kept groups/s, streaming against rounds, with a vLLM engine
    cluster  the same with 64 scripted engines in virtual time
    driver   CPU time of the driver's process, 64 and 256 scripted runners, real messages
    lead     `async_level: 1` against 0, both phases of set length
    messages bytes of what is sent

Each part runs in a process of its own. Variants of a part take turns, so that what else the
machine does hits all of them: compare the ratios, not the seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
os.environ.update(ENVIRONMENT)

PARTS = ("local", "remote", "groups", "cluster", "driver", "lead", "messages")


def start_ray(cpus: int = 4) -> None:
    """A Ray of this process's own."""
    import ray

    ray.init(
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=2 * 2**30,
    )


def measure_local(options: argparse.Namespace) -> Any:
    """Part `local`."""
    return measure_speed(options, remote=False)


def measure_remote(options: argparse.Namespace) -> Any:
    """Part `remote`."""
    return measure_speed(options, remote=True)


def measure_speed(options: argparse.Namespace, *, remote: bool) -> Any:
    """Turns of 64 problems, three times as many as other parts have."""
    import rollout_speed

    start_ray()
    return rollout_speed.measure(remote=remote, problems=64, batches=3 * options.repeats)


def measure_groups(options: argparse.Namespace) -> Any:
    """Part `groups`."""
    import rollout_groups
    from ray.rllib.env.env_runner_group import EnvRunnerGroup
    from rollout_env import SignalRateEnv
    from rollout_speed import engine_config

    from rllib_dapo.rollout.runner_calls import LocalCalls
    from rllib_dapo.rollout.runner_pool import RunnerPool

    start_ray()
    config = engine_config(problems=16, dynamic_sampling=True)
    config = config.environment(SignalRateEnv, env_config={"rate": 0.5})
    runner = EnvRunnerGroup(config=config).local_env_runner

    def set_rate(rate: float) -> None:
        runner.env.unwrapped.rate = rate

    def make_pool() -> RunnerPool:
        return RunnerPool(LocalCalls(runner), config, seed=0, send_weights=lambda numbers: [])

    return rollout_groups.measure(config, make_pool, set_rate, repeats=options.repeats)


def measure_cluster(options: argparse.Namespace) -> Any:
    """Part `cluster`: an answer at the limit takes 12 virtual seconds."""
    import rollout_groups
    from rollout_driver import scripted_config
    from rollout_virtual import VirtualCalls

    from rllib_dapo.rollout.engine.scripted import CompletionLengths, StepTime
    from rllib_dapo.rollout.runner_pool import RunnerPool

    engine = {
        "lengths": CompletionLengths(median=125, sigma=0.8, endless=0.03),
        "step_time": StepTime(fixed_s=0.08, per_completion_s=4e-4),
        "tokens_per_step": 4,
        "capacity": 32,
    }
    config = scripted_config(
        groups=128,
        group_size=16,
        rate=0.5,
        engine_kwargs=engine,
        max_completion_length=512,
        soft_overlong_cache=64,
    )
    calls = VirtualCalls(config, 64)

    def set_rate(rate: float) -> None:
        calls.env.unwrapped.rate = rate

    def make_pool() -> RunnerPool:
        return RunnerPool(calls, config, seed=0, send_weights=lambda numbers: [])

    return rollout_groups.measure(
        config, make_pool, set_rate, clock=lambda: calls.now, repeats=options.repeats
    )


def measure_driver(options: argparse.Namespace) -> Any:
    """Part `driver`."""
    import rollout_driver

    start_ray()
    return [
        rollout_driver.measure(runners, repeats=options.repeats, profile=options.profile)
        for runners in (64, 256)
    ]


def measure_lead(options: argparse.Namespace) -> Any:
    """Part `lead`."""
    import rollout_async

    start_ray()
    return rollout_async.measure()


def measure_messages(options: argparse.Namespace) -> Any:
    """Part `messages`."""
    import rollout_messages

    return rollout_messages.measure()


def run_part(name: str, options: argparse.Namespace) -> Any:
    """Measure a part in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, __file__, "--measure", name, "--result", str(result)]
        command += ["--repeats", str(options.repeats)]
        if options.profile:
            command += ["--profile", str(options.profile)]
        subprocess.run(command, check=True)
        return json.loads(result.read_text(encoding="utf-8"))


def main() -> None:
    """Measure, print, and write JSON and the picture if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", type=Path, help="file for a profile of the driver")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for rollout.json and rollout.png; fills the tables of ../scaling.md",
    )
    parser.add_argument("--draw-only", action="store_true", help="from rollout.json as it is")
    parser.add_argument("--measure", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measured = globals()[f"measure_{options.measure}"](options)
        options.result.write_text(json.dumps(measured), encoding="utf-8")
        return
    from learning_curves import machine
    from rollout_drawing import draw
    from rollout_tables import fill, tables

    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    record = options.out / "rollout.json" if options.out else None
    result: dict[str, Any] = {}
    if record is not None and record.exists() and (options.part or options.draw_only):
        result = json.loads(record.read_text(encoding="utf-8"))  # the other parts stay
    if not options.draw_only:
        result["machine"] = machine()
    for part in () if options.draw_only else options.part or PARTS:
        result[part] = run_part(part, options)
        if record is not None:
            record.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    made = tables(result)
    print("\n\n".join(f"{name}\n\n{body}" for name, body in made.items()))
    if options.out and all(part in result for part in PARTS):
        draw(result, options.out / "rollout.png")
        if (page := options.out.parent / "scaling.md").exists():
            fill(page, made)


if __name__ == "__main__":
    main()
