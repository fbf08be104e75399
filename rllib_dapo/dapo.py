"""DAPO as an RLlib Algorithm (arXiv 2503.14476, Algorithm 1)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.core import COMPONENT_LEARNER_GROUP
from ray.rllib.utils.metrics import LEARNER_RESULTS
from ray.tune.utils.util import unflatten_dict

from rllib_dapo import metrics
from rllib_dapo.dapo_config import DAPOConfig
from rllib_dapo.errors import TrainingError
from rllib_dapo.ops.batching import split_for_ranks
from rllib_dapo.problem_source import ProblemSource
from rllib_dapo.progress import RolloutProgress
from rllib_dapo.reward_functions.composition import component_names
from rllib_dapo.rl_batch import to_multi_agent_batch
from rllib_dapo.rollout_metrics import batch_metrics, evaluation_metrics
from rllib_dapo.runner_pool import RunnerPool
from rllib_dapo.sampling.dynamic import DynamicSampler
from rllib_dapo.sampling.token_batch import RewardShaping, make_token_batch
from rllib_dapo.sampling_job import SamplingJob, evaluation_sampling, training_sampling
from rllib_dapo.types import Group, ProblemRef

_STATE = "dapo"


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
        super().setup(config)
        self._pool = RunnerPool(self.env_runner_group)
        self._surplus: tuple[Group, ...] = ()
        self._keep_rate: float | None = None
        self._samples_lifetime = 0
        self._seconds: dict[str, float] = {}
        self._pool.sync_weights(self.learner_group)

    def __repr__(self) -> str:
        """The name; RLlib's own form fails before `setup`, and hides what failed there."""
        return "DAPO"

    # -- Algorithm 1 ------------------------------------------------------------------------

    def training_step(self) -> None:
        """One iteration: sample until the batch is full, update, sync."""
        self._seconds = dict.fromkeys(("sample_s", "learn_s", "sync_s"), 0.0)
        config = self.config
        if self.iteration == 0 and config.evaluation_interval and config.evaluate_before_training:
            self._report(metrics.INITIAL_EVALUATION, self._evaluate_policy())
        groups = self._sample_batch()
        if groups:
            self._update(groups)
            with self._timed("sync_s"):
                self._pool.sync_weights(self.learner_group)
        self._report(metrics.TIME, self._seconds)

    def _sample_batch(self) -> tuple[Group, ...]:
        """Dynamic sampling: ask for new problems until N groups carry a signal."""
        sampler = self._make_sampler()
        sampled: list[Group] = []
        progress = RolloutProgress(
            sampler.wanted, self.iteration + 1, self.config.progress, self.logdir
        )
        with progress, self._timed("sample_s"):
            while count := sampler.next_request():
                progress.update(sampler.progress)  # before the first group is done
                for group in self._pool.sample(self._job(self._problems.take(count))):
                    sampler.add(group)
                    sampled.append(group)
                    progress.update(sampler.progress)
        groups, surplus = sampler.result()
        # One version old is the oldest: what was left over once already is dropped.
        version = self._pool.weights_version if self.config.reuse_surplus else None
        self._surplus = tuple(group for group in surplus if group.weights_version == version)
        self._keep_rate = sampler.keep_rate if sampler.samples else self._keep_rate
        self._report_rollout(sampler, sampled, groups)
        return groups

    def _update(self, groups: tuple[Group, ...]) -> None:
        """Minibatch updates of the decoupled-clip objective on the batch.

        Raises:
            TrainingError: engine and learner have drifted apart.
        """
        batch = make_token_batch(groups, self._shaping)
        settings = {
            "num_epochs": self.config.num_epochs,
            "num_total_minibatches": -(-len(batch) // self.config.minibatch_size),
        }
        with self._timed("learn_s"):
            if self.config.num_learners:
                shares = split_for_ranks(batch, self.config.num_learners)
                results = self.learner_group.update(
                    batches=[to_multi_agent_batch(share) for share in shares], **settings
                )
            else:
                results = self.learner_group.update(batch=to_multi_agent_batch(batch), **settings)
        self.metrics.aggregate(results, key=LEARNER_RESULTS)
        self._check_gap()

    # -- Parts ------------------------------------------------------------------------------

    def _make_sampler(self) -> DynamicSampler:
        config = self.config
        sampler = DynamicSampler(
            config.groups_per_batch,
            enabled=config.dynamic_sampling,
            max_rounds=config.max_sampling_rounds,
            at_limit=config.at_sampling_limit,
            keep_rate=self._keep_rate,
        )
        sampler.carry_over(self._surplus)
        return sampler

    def _job(self, refs: tuple[ProblemRef, ...], *, evaluation: bool = False) -> SamplingJob:
        """What to ask the runners."""
        config = self.config
        sampling = evaluation_sampling(config) if evaluation else training_sampling(config)
        size = config.evaluation_samples if evaluation else config.group_size
        return SamplingJob(refs, size, sampling, config.seed or 0, evaluation)

    @property
    def _shaping(self) -> RewardShaping:
        config = self.config
        return RewardShaping(
            max_length=config.max_response_length,
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
        groups = list(self._pool.sample(self._job(refs, evaluation=True)))
        return evaluation_metrics(groups) | {"evaluate_s": time.perf_counter() - started}

    # -- Metrics ----------------------------------------------------------------------------

    def _report(self, prefix: str, values: dict[str, float]) -> None:
        """Log values as they are: RLlib would smooth them otherwise."""
        for key, value in values.items():
            self.metrics.log_value((prefix, *key.split("/")), value, window=1)

    def _report_rollout(
        self, sampler: DynamicSampler, sampled: list[Group], groups: tuple[Group, ...]
    ) -> None:
        components = component_names(self.config)
        values = batch_metrics(sampled, groups, sampler.counts, self._shaping, components)
        self._samples_lifetime += int(values["num_env_steps_sampled"])
        values |= {
            "num_env_steps_sampled_lifetime": float(self._samples_lifetime),
            "tokens_per_s": values["tokens_sampled"] / max(self._seconds["sample_s"], 1e-9),
            "rounds": float(sampler.rounds),
            "groups_reused": float(sampler.progress.carried),
            "problem_stream_position": float(self._problems.position),
            "skipped_batch": float(not groups),
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
        """Give restarted runners the current weights."""
        restored: list[int] = super().restore_env_runners(env_runner_group)
        if restored:
            self._pool.sync_weights(self.learner_group)
        return restored

    def get_state(
        self, components: Any = None, *, not_components: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """RLlib's state and ours: the place in the problem stream and the counters."""
        state: dict[str, Any] = super().get_state(
            components, not_components=not_components, **kwargs
        )
        if self._check_component(_STATE, components, not_components):
            state[_STATE] = {
                "problems": self._problems.get_state(),
                "keep_rate": self._keep_rate,
                "samples_lifetime": self._samples_lifetime,
                "surplus": self._surplus,
            }
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken."""
        super().set_state(state)
        if COMPONENT_LEARNER_GROUP in state:  # RLlib sends the weights but does not wait
            self._pool.sync_weights(self.learner_group)
        if (own := state.get(_STATE)) is not None:
            self._problems.set_state(own["problems"])
            self._keep_rate = own["keep_rate"]
            self._samples_lifetime = own["samples_lifetime"]
            self._surplus = own["surplus"]

    def save_to_path(self, *args: Any, **kwargs: Any) -> str:
        """RLlib's checkpoint; the learners write theirs themselves."""
        with self.learner_group.saving_in_place():
            return str(super().save_to_path(*args, **kwargs))

    def restore_from_path(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """RLlib's restore, then the weights into the engines, whatever their version."""
        super().restore_from_path(path, *args, **kwargs)
        self._pool.sync_weights(self.learner_group)
