"""DAPO as an RLlib Algorithm (arXiv 2503.14476, Algorithm 1)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core import COMPONENT_ENV_RUNNER, COMPONENT_LEARNER_GROUP
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.metrics import LEARNER_RESULTS
from ray.tune.utils.util import unflatten_dict

from rllib_dapo import metrics
from rllib_dapo.algorithm.config import DAPOBaseConfig
from rllib_dapo.algorithm.initial_weights import load_initial_weights
from rllib_dapo.algorithm.last_evaluation import LastEvaluation
from rllib_dapo.algorithm.weight_sync.checks import check_engine_gap
from rllib_dapo.algorithm.weight_sync.sync import WeightSync
from rllib_dapo.learner.batch_io import to_multi_agent_batch
from rllib_dapo.learner.learner_group import DAPOLearnerGroup, engine_weights_withheld
from rllib_dapo.learner.rl_module import DAPOTorchRLModule
from rllib_dapo.learner.torch_learner import DAPOTorchLearner
from rllib_dapo.model.batching import split_for_ranks
from rllib_dapo.model.facts import model_path
from rllib_dapo.rewards.composition import component_names
from rllib_dapo.rollout.env_runner import DAPOEnvRunner
from rllib_dapo.rollout.first_start import failed_starts_named
from rllib_dapo.rollout.metrics import evaluation_metrics, rollout_metrics, warn_of_failed
from rllib_dapo.rollout.problem_source import ProblemSource
from rllib_dapo.rollout.progress import RolloutProgress
from rllib_dapo.rollout.rollouts import FilledBatch, RolloutBatch, Rollouts
from rllib_dapo.rollout.runner_calls import LocalCalls, RemoteCalls
from rllib_dapo.rollout.runner_pool import RunnerPool
from rllib_dapo.rollout.token_batch import RewardShaping, make_token_batch
from rllib_dapo.types import Group

_STATE = "dapo"
_PHASES = ("sample_s", "learn_s", "sync_s")

# What the RLModule needs to know.
_MODULE_SETTINGS = (
    "trust_remote_code", "packing", "gradient_checkpointing", "compute_dtype", "shard_model",
    "lora_rank", "lora_alpha", "lora_target_modules",
)  # fmt: skip


class DAPOConfig(DAPOBaseConfig):
    """Configures DAPO; `settings.DAPOSettings` describes the settings.

    Example:
        ```python
        from rllib_dapo import DAPOConfig

        config = (
            DAPOConfig()
            .environment("rllib_dapo/Arithmetic-v0")
            .training(model="embedded", lr=3e-4, clip_high=0.28)
            .env_runners(num_env_runners=0)
        )
        algorithm = config.build_algo()
        print(algorithm.train()["env_runners"]["accuracy"])
        ```
    """

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or DAPO)
        self.env_runner_cls = DAPOEnvRunner

    def get_default_learner_class(self) -> type:
        """RLlib's hook."""
        return DAPOTorchLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """RLlib's hook."""
        return RLModuleSpec(module_class=DAPOTorchRLModule)

    def build_learner_group(
        self,
        *,
        env: Any = None,
        spaces: Any = None,
        rl_module_spec: Any = None,
        placement_group: Any = None,
    ) -> Any:
        """RLlib's hook: a `DAPOLearnerGroup`, whose state may lie in all learners."""
        if rl_module_spec is None:
            rl_module_spec = self.get_multi_rl_module_spec(env=env, spaces=spaces)
        return DAPOLearnerGroup(
            config=self.copy(), module_spec=rl_module_spec, placement_group=placement_group
        )

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        own = {
            "path": model_path(self.language_model),
            "temperature": self.temperature,
            "entropy_grad": self.entropy_coeff != 0.0,
            "seed": self.seed or 0,
            **{name: getattr(self, name) for name in _MODULE_SETTINGS},
        }
        return dict(super()._model_config_auto_includes) | own


class DAPO(Algorithm):
    """Decoupled clip and dynamic sampling policy optimisation."""

    @classmethod
    def get_default_config(cls) -> DAPOConfig:
        """RLlib's hook."""
        return DAPOConfig()

    def setup(self, config: Any) -> None:
        """Build runners and learners, then give the engines the learner's weights."""
        self._problems = ProblemSource(config)  # before engines start: it may refuse the data
        # Where a learner leaves what broke its update.
        self.config.learner_config_dict["failure_dir"] = self.logdir
        with engine_weights_withheld(), failed_starts_named():
            super().setup(config)
        if self.config.restore_weights_from is not None:
            load_initial_weights(self.learner_group, self.config.restore_weights_from)
        group = self.env_runner_group
        remote = group.num_remote_workers() > 0
        timeout_s = self.config.runner_timeout_s
        calls = RemoteCalls(group, timeout_s) if remote else LocalCalls(group.local_env_runner)
        self._weights = WeightSync.select(self.config, self.learner_group, calls)
        self._pool = RunnerPool(
            calls,
            self.config,
            seed=self.config.seed or 0,
            evaluation=self.evaluation_config,
            send_weights=self._weights.send_again,
        )
        self._rollouts = Rollouts(self.config, self._pool, self._problems)
        self._next_batch: RolloutBatch | None = None  # sampled ahead (`async_level: 1`)
        self._sync_gap = 0.0
        self._samples_lifetime = 0
        self._last_evaluation = LastEvaluation()
        self._seconds = dict.fromkeys(_PHASES, 0.0)
        self._sync()

    def __repr__(self) -> str:
        """The name; RLlib's own form fails before `setup`, and hides what failed there."""
        return "DAPO"

    # -- Algorithm 1 ------------------------------------------------------------------------

    def training_step(self) -> None:
        """One iteration of Algorithm 1: sample until the batch is full, update, sync."""
        self._start_iteration()
        if self.config.async_level:
            self._one_step_off()
            return
        batch = self._sample(self.iteration + 1)
        if self.config.colocate:
            # A sleeping engine would resume what is in flight under the new weights.
            self._rollouts.wait_for_in_flight(batch)
            self._weights.sleep(self._pool.runners)
        self._update(batch.groups)
        # The runners kept sampling with the old weights, so close the batch before the sync.
        rollout = self._rollouts.finish(batch)
        if rollout.groups:
            self._sync()
        self._report_iteration(rollout)

    def _one_step_off(self) -> None:
        """Do one iteration, and sample the next batch meanwhile (`async_level: 1`).

        The engines get the new weights when both are done, so every batch but the first was
        sampled by weights that are one version old.
        """
        rollout = self._next_batch or self._rollouts.finish(self._sample(self.iteration + 1))
        self._next_batch = None
        with ThreadPoolExecutor(1, thread_name_prefix="learning") as executor:
            update = executor.submit(self._run_learners, rollout.groups)
            try:
                self._next_batch = self._rollouts.finish(self._sample(self.iteration + 2))
            finally:  # if both have failed, the learner's error is raised
                results = update.result()
        self._log_update(results)
        if rollout.groups:
            self._sync()
        self._report_iteration(rollout)

    def _sample(self, iteration: int) -> FilledBatch:
        """Sample until the batch of an iteration is full."""
        config = self.config
        with RolloutProgress(
            config.groups_per_batch, iteration, config.progress, self.logdir
        ) as progress:
            return self._rollouts.sample(progress.update)

    def _update(self, groups: tuple[Group, ...]) -> None:
        """Compute advantages, and update the policy by minibatches of the batch."""
        self._log_update(self._run_learners(groups))

    def _run_learners(self, groups: tuple[Group, ...]) -> Any:
        """Run the learners on a batch; returns their metrics, or None if there are no groups."""
        if not groups:
            return None
        batch = make_token_batch(groups, RewardShaping.from_settings(self.config))
        settings = {
            "num_epochs": self.config.num_epochs,
            "num_total_minibatches": -(-len(batch) // self.config.minibatch_size),
        }
        with self._timed("learn_s"):
            if self.config.num_learners:
                shares = split_for_ranks(batch, self.config.num_learners)
                batches = [to_multi_agent_batch(share) for share in shares]
                return self.learner_group.update(batches=batches, **settings)
            return self.learner_group.update(batch=to_multi_agent_batch(batch), **settings)

    def _log_update(self, results: Any) -> None:
        """Log the learners' metrics, in the thread that owns the metrics logger.

        Raises:
            TrainingError: engine and learner have drifted apart.
        """
        if results is not None:
            self.metrics.aggregate(results, key=LEARNER_RESULTS)
            key = tuple(f"{metrics.LEARNER}/engine_gap_mean".split("/"))
            check_engine_gap(self.metrics.peek(key, default=0.0), self.config)

    def _sync(self) -> None:
        """Bring the learner's weights into every engine, and wait until they serve."""
        with self._timed("sync_s"):
            report = self._weights.send(self._pool.reachable)
            self._pool.serve(report.version, report.served)
        self._sync_gap = self._sync_gap if report.gap is None else report.gap

    def _start_iteration(self) -> None:
        """Reset the clocks; before the first iteration, evaluate the untrained policy."""
        self._seconds = dict.fromkeys(_PHASES, 0.0)
        config = self.config
        if self.iteration == 0 and config.evaluation_interval and config.evaluate_before_training:
            values = self._evaluate_policy()
            self._last_evaluation.take(values, 0)
            self._report(metrics.INITIAL_EVALUATION, values)

    # -- Evaluation -------------------------------------------------------------------------

    @classmethod
    def _should_create_evaluation_env_runners(cls, eval_config: Any) -> bool:
        """RLlib's hook: make no runners for evaluation, which would need engines of their own."""
        return False

    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Evaluate with the training engines, which already have the present weights."""
        config, known = self.config, {"algorithm": self, "metrics_logger": self.metrics}
        make_callback("on_evaluate_start", self.callbacks, config.callbacks_on_evaluate_start,
                      kwargs=known)  # fmt: skip
        results = dict(unflatten_dict(self._evaluate_policy()))  # `dataset_accuracy/<name>` too
        make_callback("on_evaluate_end", self.callbacks, config.callbacks_on_evaluate_end,
                      kwargs=known | {"evaluation_metrics": results})  # fmt: skip
        return results

    def _evaluate_policy(self) -> dict[str, float]:
        """Return avg@k and pass@k over the first problems of the evaluation environment."""
        started, settings = time.perf_counter(), self.evaluation_config
        refs = self._problems.evaluation_refs(int(settings.evaluation_duration))
        groups = self._rollouts.answer(refs)
        warn_of_failed(groups)
        values = evaluation_metrics(
            groups,
            components=component_names(settings),
            source_name=self._problems.source_name,
        )
        return values | {"evaluate_s": time.perf_counter() - started}

    # -- Metrics ----------------------------------------------------------------------------

    def _report(self, prefix: str, values: dict[str, float]) -> None:
        """Log values as they are: RLlib would smooth them otherwise."""
        for key, value in values.items():
            self.metrics.log_value((prefix, *key.split("/")), value, window=1)

    def _report_iteration(self, rollout: RolloutBatch) -> None:
        """Log what was sampled for this iteration, and how long each phase took."""
        values = rollout_metrics(rollout, self.config)
        self._seconds["sample_s"] = rollout.seconds
        self._samples_lifetime += int(values["num_env_steps_sampled"])
        values |= {
            "num_env_steps_sampled_lifetime": float(self._samples_lifetime),
            "runners_lost": float(self._pool.lost.total()),
            "problem_stream_position": float(self._problems.position),
            "sync_gap": self._sync_gap,
        }
        self._report(metrics.ROLLOUT, values)
        self._report(metrics.TIME, self._seconds)

    @contextmanager
    def _timed(self, key: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[key] += time.perf_counter() - started

    def _compile_iteration_results(
        self, *, train_results: dict[str, Any], eval_results: dict[str, Any]
    ) -> dict[str, Any]:
        # RLlib keeps what was logged before and would repeat it as if it were new.
        for stale in (metrics.EVALUATION, *([metrics.INITIAL_EVALUATION] * (self.iteration > 0))):
            train_results.pop(stale, None)
        results: dict[str, Any] = super()._compile_iteration_results(
            train_results=train_results, eval_results=eval_results
        )
        if self.config.evaluation_interval:
            evaluation = results.get(metrics.EVALUATION, {})
            results[metrics.TIME]["evaluate_s"] = evaluation.get("evaluate_s", 0.0)
            if evaluation:
                self._last_evaluation.take(evaluation, self.iteration + 1)
            results[metrics.EVALUATION] = self._last_evaluation.result()
        return results

    def save(self, checkpoint_dir: str | None = None) -> Any:
        """Tune's hook: a checkpoint is scored by an evaluation of its own weights only."""
        saved = super().save(checkpoint_dir)
        self._last_evaluation.complete(saved.metrics, self.iteration)
        return saved

    # -- Runners and state ------------------------------------------------------------------

    def restore_env_runners(self, env_runner_group: Any) -> list[int]:
        """RLlib's hook: the pool has taken in already what came back; say which."""
        return self._pool.take_returned()

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """RLlib's hook: a checkpoint has weights of its own and needs no other one's."""
        config = self.config.copy(copy_frozen=False)
        config.restore_weights_from = None
        return (config.get_state(),), {}

    def get_state(
        self, components: Any = None, *, not_components: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """RLlib's state and ours: the rollouts' and the counters."""
        state: dict[str, Any] = super().get_state(
            components, not_components=not_components, **kwargs
        )
        if self._check_component(_STATE, components, not_components):
            state[_STATE] = {
                "rollouts": self._rollouts.get_state(),
                "next_batch": self._next_batch,
                "samples_lifetime": self._samples_lifetime,
                "last_evaluation": self._last_evaluation.get_state(),
            }
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        # Runners have no state beside the weights. RLlib would send them one, with a count
        # of steps that is NaN after an iteration.
        with engine_weights_withheld():
            super().set_state({k: v for k, v in state.items() if k != COMPONENT_ENV_RUNNER})
        if (own := state.get(_STATE)) is not None:
            self._rollouts.set_state(own["rollouts"])
            self._next_batch = own["next_batch"]
            self._samples_lifetime = own["samples_lifetime"]
            self._last_evaluation.set_state(own["last_evaluation"])
        if COMPONENT_LEARNER_GROUP in state:
            self._sync()

    def save_to_path(
        self,
        path: str | Path | None = None,
        *,
        state: dict[str, Any] | None = None,
        filesystem: Any = None,
        use_msgpack: bool = False,
    ) -> str:
        """Write RLlib's checkpoint; remote learners write their own part of it.

        RLlib would fetch the learners' state and hand it back for saving. Weights and two
        moments of a large model do not fit into this process.
        """
        settings = {"filesystem": filesystem, "use_msgpack": use_msgpack}
        if state is not None or self.learner_group.is_local:
            return str(super().save_to_path(path, state=state, **settings))
        parts = [name for name, _ in self.get_checkpointable_components()]
        state = self.get_state(not_components=parts)
        for name in set(parts) - {COMPONENT_LEARNER_GROUP}:
            state[name] = self.get_state(components=name)[name]
        saved = str(super().save_to_path(path, state=state, **settings))
        self.learner_group.save_to_path(f"{path or saved}/{COMPONENT_LEARNER_GROUP}", **settings)
        return saved

    def restore_from_path(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """RLlib's restore, then the weights into the engines, whatever their version."""
        with engine_weights_withheld():
            super().restore_from_path(path, *args, **kwargs)
        self._sync()
