"""Many runners in few processes, behind RLlib's own calls.

A process with torch, RLlib and a tokenizer takes hundreds of MiB, so 256 of them fit no small
machine. Here one Ray actor hosts many runners, each a real `DAPOEnvRunner` with threads of
its own and a scripted engine. What the driver sends and gets are real Ray messages, one for
each runner and call, through RLlib's own `EnvRunnerGroup` and actor manager. What is not
real: runners of one host share its interpreter and die together.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ray
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils.actor_manager import FaultTolerantActorManager

from rllib_dapo.model.facts import load_tokenizer
from rllib_dapo.rollout.engine.scripted import ScriptedEngine
from rllib_dapo.rollout.env_runner import DAPOEnvRunner


class ScriptedRunner(DAPOEnvRunner):
    """A runner with a scripted engine; `engine_kwargs` are the engine's arguments."""

    def make_module(self) -> None:
        """Start the engine: its words are the tokenizer's, without the special ones."""
        tokenizer = load_tokenizer(self._facts.path, trust_remote_code=False)
        special = set(tokenizer.all_special_ids)
        self._engine = ScriptedEngine(
            words=[i for i in range(len(tokenizer)) if i not in special],
            eos=self._facts.stop_token_ids[0],
            **self.config.engine_kwargs,
        )


class RunnerHost:
    """An actor that hosts runners.

    Args:
        config: every runner's.
        numbers: RLlib's numbers of the runners here.
        total: runners on all hosts.
    """

    def __init__(self, config: Any, numbers: list[int], total: int) -> None:
        self._runners = {
            number: config.env_runner_cls(config=config, worker_index=number, num_workers=total)
            for number in numbers
        }

    def call(self, number: int, method: str, arguments: Any, kwargs: dict[str, Any]) -> Any:
        """A call to a runner."""
        return getattr(self._runners[number], method)(*arguments, **kwargs)

    def usage(self) -> dict[str, float]:
        """MiB of its own (the object store's pages left out), and CPU seconds so far."""
        pages = [int(n) for n in Path("/proc/self/statm").read_text(encoding="ascii").split()]
        times = os.times()
        return {
            "own_mib": (pages[1] - pages[2]) * os.sysconf("SC_PAGE_SIZE") / 2**20,
            "cpu_s": times.user + times.system,
        }


class HostedRunner:
    """Looks to RLlib like the handle of an actor with one runner."""

    class _Method:
        def __init__(self, host: Any, number: int, method: str) -> None:
            self._host, self._number, self._method = host, number, method

        def remote(self, *arguments: Any, **kwargs: Any) -> Any:
            """Call the runner on its host."""
            return self._host.call.remote(self._number, self._method, arguments, kwargs)

    def __init__(self, host: Any, number: int) -> None:
        for method in ("apply", "withdraw"):
            setattr(self, method, self._Method(host, number, method))


class HostedRunnerGroup(EnvRunnerGroup):
    """RLlib's group of remote runners, on hosts.

    Args:
        config: the algorithm's; `env_runner_cls` is what is hosted.
        runners: how many.
        per_host: most runners of one host.
    """

    def __init__(self, config: Any, runners: int, *, per_host: int = 64) -> None:
        super().__init__(config=config, _setup=False)
        self._local_env_runner = None
        numbers = list(range(1, runners + 1))
        shares = [numbers[i : i + per_host] for i in range(0, runners, per_host)]
        # Two calls at once for each runner: RLlib's, and a ping.
        host = ray.remote(num_cpus=0, max_concurrency=2 * per_host)(RunnerHost)
        self.hosts = [host.remote(config, share, runners) for share in shares]
        handles = [
            HostedRunner(actor, number)
            for actor, share in zip(self.hosts, shares, strict=True)
            for number in share
        ]
        self._worker_manager = FaultTolerantActorManager(
            handles,
            max_remote_requests_in_flight_per_actor=config.max_requests_in_flight_per_env_runner,
            init_id=1,
        )
        self.usage()  # wait until they are up

    def usage(self) -> list[dict[str, float]]:
        """Memory and CPU time of each host."""
        usages: list[dict[str, float]] = ray.get([host.usage.remote() for host in self.hosts])
        return usages

    def stop(self) -> None:
        """End the hosts."""
        for host in self.hosts:
            ray.kill(host)
