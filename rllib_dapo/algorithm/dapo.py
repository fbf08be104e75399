"""DAPO as an RLlib Algorithm (arXiv 2503.14476, Algorithm 1)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.core import COMPONENT_ENV_RUNNER, COMPONENT_LEARNER_GROUP
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.metrics import LEARNER_RESULTS
from ray.tune.utils.util import unflatten_dict

from rllib_dapo import metrics
from rllib_dapo.algorithm.config import DAPOBaseConfig
from rllib_dapo.algorithm.weight_sync.sync import WeightSync
from rllib_dapo.errors import TrainingError
from rllib_dapo.learner.learner_group import DAPOLearnerGroup, engine_weights_withheld
from rllib_dapo.learner.rl_batch import to_multi_agent_batch
from rllib_dapo.learner.rl_module import DAPOTorchRLModule
from rllib_dapo.learner.torch_learner import DAPOTorchLearner
from rllib_dapo.model.batching import split_for_ranks
from rllib_dapo.model.facts import model_path
from rllib_dapo.rewards.composition import component_names
from rllib_dapo.rollout.env_runner import DAPOEnvRunner
from rllib_dapo.rollout.metrics import batch_metrics, demand_metrics, evaluation_metrics
from rllib_dapo.rollout.problem_source import ProblemSource
from rllib_dapo.rollout.progress import RolloutProgress
from rllib_dapo.rollout.rollouts import RolloutBatch, Rollouts
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
    """Configures DAPO; settings and their meaning: `settings.DAPOSettings`.

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
        with engine_weights_withheld():
            super().setup(config)
        group = self.env_runner_group
        remote = group.num_remote_workers() > 0
        timeout_s = self.config.runner_timeout_s
        calls = RemoteCalls(group, timeout_s) if remote else LocalCalls(group.local_env_runner)
        self._weights = WeightSync.select(self.config, self.learner_group, calls)
        self._pool = RunnerPool(
            calls, self.config, seed=self.config.seed or 0, equip=self._weights.send_again
        )
        self._rollouts = Rollouts(self.config, self._pool, self._problems)
        self._sync_gap = 0.0
        self._samples_lifetime = 0
        self._seconds = dict.fromkeys(_PHASES, 0.0)
        self._sync_weights()

    def __repr__(self) -> str:
        """The name; RLlib's own form fails before `setup`, and hides what failed there."""
        return "DAPO"

    # -- Algorithm 1 ------------------------------------------------------------------------

    def training_step(self) -> None:
        """One iteration: sample until the batch is full, update, sync.

        With `async_level: 1` the next batch is sampled while the learner works on this one;
        the engines get the new weights when both are done.
        """
        self._seconds = dict.fromkeys(_PHASES, 0.0)
        config = self.config
        if self.iteration == 0 and config.evaluation_interval and config.evaluate_before_training:
            self._report(metrics.INITIAL_EVALUATION, self._evaluate_policy())
        with self._progress(self.iteration + 1) as progress:
            groups = self._rollouts.next_batch(progress.update)
        with self._learning(groups):
            if config.async_level:
                with self._progress(self.iteration + 2) as progress:
                    self._rollouts.sample_ahead(progress.update)
        self._rollouts.settle()
        self._report_rollout(self._rollouts.taken)
        if groups:
            self._sync_weights()
        self._report(metrics.ROLLOUT, {"sync_gap": self._sync_gap})
        self._report(metrics.TIME, self._seconds)

    @contextmanager
    def _learning(self, groups: tuple[Group, ...]) -> Iterator[None]:
        """Update on a batch: beside what is done within, or after it if there is no lead."""
        if not groups:
            yield
        elif not self.config.async_level:
            yield
            if self.config.colocate:
                self._rollouts.settle()  # asleep they would go on with the new weights
                self._weights.sleep(self._pool.runners)
            self._finish_update(self._update(groups))
        else:
            with ThreadPoolExecutor(1, thread_name_prefix="learning") as executor:
                update = executor.submit(self._update, groups)
                try:
                    yield
                finally:  # should both have failed, what the learner says comes first
                    results = update.result()
            self._finish_update(results)

    def _update(self, groups: tuple[Group, ...]) -> Any:
        """Minibatch updates of the decoupled-clip objective on the batch."""
        batch = make_token_batch(groups, self._shaping)
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

    def _finish_update(self, results: Any) -> None:
        """Take the learners' metrics in.

        Raises:
            TrainingError: engine and learner have drifted apart.
        """
        self.metrics.aggregate(results, key=LEARNER_RESULTS)
        self._check_gap()

    # -- Parts ------------------------------------------------------------------------------

    def _sync_weights(self) -> None:
        """Bring the learner's weights into every engine, and wait until they serve."""
        with self._timed("sync_s"):
            report = self._weights.send(self._pool.reachable)
            self._pool.serve(report.version, report.served)
        self._sync_gap = self._sync_gap if report.gap is None else report.gap

    def _progress(self, iteration: int) -> RolloutProgress:
        config = self.config
        return RolloutProgress(config.groups_per_batch, iteration, config.progress, self.logdir)

    @property
    def _shaping(self) -> RewardShaping:
        config = self.config
        return RewardShaping(
            max_length=config.max_completion_length,
            overlong_cache=config.soft_overlong_cache if config.soft_overlong_punishment else None,
            overlong_filtering=config.overlong_filtering,
            normalize_std=config.normalize_advantage_std,
            baseline=config.advantage_baseline,
        )

    def _check_gap(self) -> None:
        """The alarm of `max_engine_gap`."""
        limit = self.config.max_engine_gap
        key = tuple(f"{metrics.LEARNER}/engine_gap_mean".split("/"))
        gap = self.metrics.peek(key, default=0.0)
        if limit is not None and not gap <= limit:
            raise TrainingError(
                f"engine and learner differ by {gap:.2e} nats per token on average, more than "
                f"max_engine_gap={limit:g}. Is `dtype` ({self.config.dtype!r}) coarser than "
                f"`compute_dtype` ({self.config.compute_dtype!r})? Does `engine_kwargs` change the "
                "model (quantization)? Does the model tie its embeddings in a way vLLM does not "
                "know? If the difference is to be lived with, `old_logprobs: learner` with "
                "`importance_sampling: token` corrects for it."
            )

    # -- Evaluation -------------------------------------------------------------------------

    @classmethod
    def _should_create_evaluation_env_runners(cls, eval_config: Any) -> bool:
        """No second set of runners: theirs would be a second set of engines."""
        return False

    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Answer held-out problems with the training engines; the weights are in them."""
        return dict(unflatten_dict(self._evaluate_policy()))  # `dataset_accuracy/<name>` too

    def _evaluate_policy(self) -> dict[str, float]:
        """avg@k and pass@k over the first problems of the evaluation environment."""
        started = time.perf_counter()
        refs = self._problems.evaluation_refs(int(self.config.evaluation_duration))
        groups = self._rollouts.answer(refs)
        return evaluation_metrics(groups) | {"evaluate_s": time.perf_counter() - started}

    # -- Metrics ----------------------------------------------------------------------------

    def _report(self, prefix: str, values: dict[str, float]) -> None:
        """Log values as they are: RLlib would smooth them otherwise."""
        for key, value in values.items():
            self.metrics.log_value((prefix, *key.split("/")), value, window=1)

    def _report_rollout(self, batch: RolloutBatch) -> None:
        names = component_names(self.config)
        values = batch_metrics(batch.sampled, batch.groups, batch.counts, self._shaping, names)
        self._seconds["sample_s"] = batch.seconds
        self._samples_lifetime += int(values["num_env_steps_sampled"])
        values |= demand_metrics(
            batch.progress,
            batch.groups,
            surplus=batch.surplus,
            expired=batch.expired,
            keep_rate=batch.keep_rate,
        )
        values |= {
            "num_env_steps_sampled_lifetime": float(self._samples_lifetime),
            "tokens_per_s": values["tokens_sampled"] / max(batch.seconds, 1e-9),
            "engines_busy_share": batch.busy_share,
            "runners_lost": float(self._pool.lost.total()),
            "problem_stream_position": float(self._problems.position),
            "skipped_batch": float(not batch.groups),
        }
        self._report(metrics.ROLLOUT, values)

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
        if evaluation := results.get(metrics.EVALUATION):
            results[metrics.TIME]["evaluate_s"] = evaluation.pop("evaluate_s", 0.0)
        return results

    # -- Runners and state ------------------------------------------------------------------

    def restore_env_runners(self, env_runner_group: Any) -> list[int]:
        """RLlib's hook: the pool has taken in already what came back; say which."""
        return self._pool.take_returned()

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
                "samples_lifetime": self._samples_lifetime,
            }
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken."""
        # Runners have no state beside the weights. RLlib would send them one, with a count
        # of steps that is NaN after an iteration.
        with engine_weights_withheld():
            super().set_state({k: v for k, v in state.items() if k != COMPONENT_ENV_RUNNER})
        if (own := state.get(_STATE)) is not None:
            self._rollouts.set_state(own["rollouts"])
            self._samples_lifetime = own["samples_lifetime"]
        if COMPONENT_LEARNER_GROUP in state:
            self._sync_weights()

    def save_to_path(self, *args: Any, **kwargs: Any) -> str:
        """RLlib's checkpoint; the learners write theirs themselves."""
        with self.learner_group.saving_in_place():
            return str(super().save_to_path(*args, **kwargs))

    def restore_from_path(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """RLlib's restore, then the weights into the engines, whatever their version."""
        with engine_weights_withheld():
            super().restore_from_path(path, *args, **kwargs)
        self._sync_weights()
