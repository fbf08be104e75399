"""The configuration without its classes: RLlib's `AlgorithmConfig` with DAPO's settings.

`DAPOConfig`, beside `DAPO` in `dapo.py`, adds which runner, learner and module are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.models import MODEL_DEFAULTS

from rllib_dapo.algorithm import preflight
from rllib_dapo.settings.choices import (
    Aggregation,
    AtLimit,
    Baseline,
    ChatMode,
    ComputeDtype,
    ImportanceSampling,
    KLEstimator,
    LearningRateSchedule,
    OldLogprobs,
    ProgressMode,
    RatioLevel,
    RewardFailure,
    UnfinishedGroups,
    WeightSyncChoice,
)
from rllib_dapo.settings.general import DAPOSettings, setting_names
from rllib_dapo.settings.run import RunSettings

# Keys that RLlib's dictionaries use for attributes of another name.
_ALIASES = {
    "model": "language_model",
    "model_config": "_model_config",
    "learner_class": "_learner_class",
}


class DAPOBaseConfig(AlgorithmConfig, RunSettings):
    """RLlib's configuration with DAPO's settings: defaults, fluent and dictionary forms, checks."""

    def __init__(self, algo_class: type | None) -> None:
        super().__init__(algo_class=algo_class)
        for name in setting_names():
            value = getattr(DAPOSettings, name)
            setattr(self, name, dict(value) if isinstance(value, dict) else value)
        self.num_env_runners = 0
        self.lr = 3e-4
        self.grad_clip = 1.0
        self.grad_clip_by = "global_norm"
        self.num_epochs = 1
        self.minibatch_size = 128
        self.batch_mode = "complete_episodes"
        # There are no connectors: token batches are made in `training_step`.
        self.add_default_connectors_to_env_to_module_pipeline = False
        self.add_default_connectors_to_module_to_env_pipeline = False
        self.add_default_connectors_to_learner_pipeline = False
        self._dont_auto_sync_env_runner_states = True
        # An engine that fails is not sent to sleep for a minute first.
        self.delay_between_env_runner_restarts_s = 0.0
        self.evaluation_duration = 128

    def training(
        self,
        *,
        model: str = NotProvided,
        trust_remote_code: bool = NotProvided,
        max_prompt_length: int = NotProvided,
        max_completion_length: int = NotProvided,
        prompt_template: str = NotProvided,
        system_prompt: str | None = NotProvided,
        few_shot: Sequence[dict[str, str]] = NotProvided,
        chat: ChatMode = NotProvided,
        soft_overlong_punishment: bool = NotProvided,
        soft_overlong_cache: int = NotProvided,
        overlong_filtering: bool = NotProvided,
        format_reward: float = NotProvided,
        reward_functions: Sequence[dict[str, Any]] = NotProvided,
        reward_failure: RewardFailure = NotProvided,
        reward_timeout_s: float = NotProvided,
        evaluation_samples: int = NotProvided,
        evaluation_temperature: float = NotProvided,
        evaluation_top_p: float = NotProvided,
        evaluate_before_training: bool = NotProvided,
        progress: ProgressMode = NotProvided,
        wait_for_resources: bool = NotProvided,
        group_size: int = NotProvided,
        groups_per_batch: int = NotProvided,
        temperature: float = NotProvided,
        top_p: float = NotProvided,
        dynamic_sampling: bool = NotProvided,
        max_sampling_rounds: int = NotProvided,
        at_sampling_limit: AtLimit = NotProvided,
        unfinished_groups: UnfinishedGroups = NotProvided,
        max_staleness: int = NotProvided,
        async_level: Literal[0, 1] = NotProvided,
        runner_timeout_s: float = NotProvided,
        runner_restart_timeout_s: float = NotProvided,
        max_problem_attempts: int = NotProvided,
        dtype: str = NotProvided,
        engine_cpu_threads: int | None = NotProvided,
        learner_cpu_threads: int | None = NotProvided,
        kv_cache_gib: float = NotProvided,
        engine_kwargs: dict[str, Any] = NotProvided,
        max_engine_gap: float | None = NotProvided,
        tensor_parallel_size: int = NotProvided,
        colocate: bool = NotProvided,
        weight_sync: WeightSyncChoice = NotProvided,
        sync_check_interval: int = NotProvided,
        sync_check_tolerance: float | None = NotProvided,
        clip_low: float = NotProvided,
        clip_high: float = NotProvided,
        dual_clip: float | None = NotProvided,
        ratio_level: RatioLevel = NotProvided,
        loss_aggregation: Aggregation = NotProvided,
        normalize_advantage_std: bool = NotProvided,
        advantage_baseline: Baseline = NotProvided,
        entropy_coeff: float = NotProvided,
        kl_coeff: float = NotProvided,
        kl_estimator: KLEstimator = NotProvided,
        old_logprobs: OldLogprobs = NotProvided,
        importance_sampling: ImportanceSampling = NotProvided,
        importance_cap: float = NotProvided,
        importance_mask_above: float | None = NotProvided,
        warmup_iterations: int = NotProvided,
        lr_schedule: LearningRateSchedule = NotProvided,
        lr_decay_iterations: int | None = NotProvided,
        lr_end_factor: float = NotProvided,
        weight_decay: float = NotProvided,
        adam_beta2: float = NotProvided,
        max_skipped_updates: int = NotProvided,
        max_tokens_per_microbatch: int = NotProvided,
        packing: bool = NotProvided,
        share_prompts: bool = NotProvided,
        gradient_checkpointing: bool = NotProvided,
        compute_dtype: ComputeDtype = NotProvided,
        shard_model: bool = NotProvided,
        lora_rank: int | None = NotProvided,
        lora_alpha: float = NotProvided,
        lora_target_modules: str | Sequence[str] = NotProvided,
        **rllib: Any,
    ) -> Self:
        """Set DAPO's settings and RLlib's own training settings (`lr`, `minibatch_size`, …).

        Args:
            model: see `DAPOSettings.language_model`.
            **rllib: RLlib's `AlgorithmConfig.training` settings.

        All other arguments: see the attribute of the same name in `DAPOSettings`.

        Raises:
            SettingError: a setting is unknown; the message names the nearest one.
        """
        given = {k: v for k, v in locals().items() if k in _OWN_KEYS and v is not NotProvided}
        preflight.refuse_unknown(rllib, preflight.training_keywords(), also=_OWN_KEYS)
        super().training(**rllib)
        for key, value in given.items():
            setattr(self, _ALIASES.get(key, key), value)
        return self

    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Set attributes from a dictionary, for instance of a YAML file.

        Raises:
            SettingError: a key is unknown; the message names the nearest one.
        """
        # Tune passes notes of its own through the configuration: `__trial_info__` and such.
        config_dict = {k: v for k, v in config_dict.items() if not str(k).startswith("__")}
        known = {*vars(self), *_ALIASES, *preflight.RLLIB_KEYS}
        preflight.refuse_unknown(config_dict, known)
        translated = {}
        for key, value in config_dict.items():
            if key == "model" and isinstance(value, Mapping):
                # RLlib's old network settings, as its own `to_dict` writes them.
                if dict(value) != MODEL_DEFAULTS:
                    preflight.refuse_network_settings(value)
                continue
            translated[_ALIASES.get(key, key)] = value
        own = {k: translated.pop(k) for k in list(translated) if k in _OWN_ATTRIBUTES}
        super().update_from_dict(translated)
        for key, value in own.items():  # `evaluation_…` of ours would go to RLlib's method
            setattr(self, key, value)
        return self

    def validate(self) -> None:
        """Refuse impossible settings before anything expensive starts.

        Raises:
            SettingError: names the setting, its value and the remedy.
            DataError: the data set cannot be used.
        """
        preflight.check_before_rllib(self)
        super().validate()
        preflight.check(self)


_OWN_ATTRIBUTES = frozenset(setting_names())
_OWN_KEYS = (_OWN_ATTRIBUTES - {"language_model"}) | {"model"}
