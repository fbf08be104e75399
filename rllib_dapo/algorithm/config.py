"""The base of `DAPOConfig`: RLlib's `AlgorithmConfig` with DAPO's settings and their checks.

`DAPOConfig`, in `dapo.py`, adds the classes of runner, learner and module that a run uses.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ParamSpec, Protocol, Self, TypeVar, cast, get_type_hints

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.models import MODEL_DEFAULTS

from rllib_dapo.algorithm import preflight
from rllib_dapo.settings.checks import check_settings, word_for
from rllib_dapo.settings.evaluation import OTHER_NAMES, meant_by
from rllib_dapo.settings.general import DAPOSettings
from rllib_dapo.settings.names import refuse_unknown, setting_names
from rllib_dapo.settings.run import RLlibTrainingSettings, RunSettings

# Keys that RLlib's dictionaries use for attributes of another name.
_ALIASES = {
    "model": "language_model",
    "model_config": "_model_config",
    "learner_class": "_learner_class",
}

_RLLIB_KEYS = frozenset({
    "callbacks", "create_env_on_driver", "custom_eval_function", "framework", "input",
    "lambda", "multiagent", "num_cpus_for_driver", "num_workers", "exploration_config",
    "_enable_new_api_stack", "simple_optimizer", "policies",
})  # fmt: skip
"""Keys that RLlib's dictionaries may hold beside the attributes of its config."""


@dataclass(kw_only=True, eq=False, repr=False)
class TrainingKeywords(DAPOSettings, RLlibTrainingSettings):
    """The keywords of `DAPOConfig.training`, with their types.

    They are DAPO's settings, with `model` for `language_model`, and those of RLlib's own
    `AlgorithmConfig.training`.
    """

    language_model: str = field(default=DAPOSettings.language_model, init=False)
    model: str = DAPOSettings.language_model

    # RLlib's, which DAPO hands on without reading them.
    gamma: Any = None
    train_batch_size: Any = None
    train_batch_size_per_learner: Any = None
    shuffle_batch_per_epoch: Any = None
    optimizer: Any = None
    num_aggregator_actors_per_learner: Any = None
    max_requests_in_flight_per_aggregator_actor: Any = None
    learner_class: Any = None
    learner_connector: Any = None
    add_default_connectors_to_learner_pipeline: Any = None
    learner_config_dict: Any = None


_OWN_ATTRIBUTES = frozenset(setting_names())
_KEYWORDS = frozenset(f.name for f in fields(TrainingKeywords) if f.init)

_Params = ParamSpec("_Params")
_Config = TypeVar("_Config")


class _Fluent(Protocol[_Params]):
    """A method that takes the keywords of a settings class and returns its config."""

    def __get__(
        self, config: _Config, kind: type[_Config] | None = None, /
    ) -> Callable[_Params, _Config]: ...


def _with_keywords_of(
    kind: Callable[_Params, object],
) -> Callable[[Callable[..., Any]], _Fluent[_Params]]:
    """Give a method the keywords of a settings class, for type checkers, editors and `help`."""

    def decorate(method: Callable[..., Any]) -> _Fluent[_Params]:
        own = next(iter(inspect.signature(method).parameters.values()))
        plain = get_type_hints(kind)  # bounds and remedies would make it long
        keywords = [
            parameter.replace(annotation=plain[name])
            for name, parameter in inspect.signature(kind).parameters.items()
        ]
        method.__signature__ = inspect.Signature([own, *keywords])  # type: ignore[attr-defined]
        return cast("_Fluent[_Params]", method)

    return decorate


class DAPOBaseConfig(AlgorithmConfig, RunSettings):
    """RLlib's configuration with DAPO's settings: defaults, fluent and dictionary forms, checks."""

    def __init__(self, algo_class: type | None) -> None:
        AlgorithmConfig.__init__(self, algo_class=algo_class)
        for name, value in vars(RunSettings()).items():
            setattr(self, name, value)
        self.batch_mode = "complete_episodes"
        # There are no connectors: token batches are made in `training_step`.
        self.add_default_connectors_to_env_to_module_pipeline = False
        self.add_default_connectors_to_module_to_env_pipeline = False
        self.add_default_connectors_to_learner_pipeline = False
        self._dont_auto_sync_env_runner_states = True
        # RLlib would wait for a minute before it starts a failed runner again.
        self.delay_between_env_runner_restarts_s = 0.0

    @_with_keywords_of(TrainingKeywords)
    def training(self, **given: Any) -> Self:
        """Set DAPO's settings and RLlib's own training settings (`lr`, `minibatch_size`, …).

        Args:
            **given: each keyword is a setting; `DAPOSettings` and `RLlibTrainingSettings` say
                what it means. `model` sets `DAPOSettings.language_model`. What is not given
                keeps its value.

        Raises:
            SettingError: a setting is unknown; the message names the nearest one.
        """
        refuse_unknown(given, _KEYWORDS)
        given = {key: value for key, value in given.items() if value is not NotProvided}
        own = {k: given.pop(k) for k in list(given) if _ALIASES.get(k, k) in _OWN_ATTRIBUTES}
        super().training(**given)
        self._set_own(own)
        return self

    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Set attributes from a dictionary, for instance of a YAML file.

        Raises:
            SettingError: a key is unknown; the message names the nearest one.
        """
        # Tune passes notes of its own through the configuration: `__trial_info__` and such.
        config_dict = {k: v for k, v in config_dict.items() if not str(k).startswith("__")}
        refuse_unknown(config_dict, {*vars(self), *_ALIASES, *_RLLIB_KEYS})
        translated = {}
        for key, value in config_dict.items():
            if key == "model" and isinstance(value, Mapping):
                # RLlib's old network settings, as its own `to_dict` writes them.
                if dict(value) != MODEL_DEFAULTS:
                    preflight.refuse_network_settings(value)
                continue
            translated[_ALIASES.get(key, key)] = value
        # RLlib would take our `evaluation_…` for settings of its own `evaluation` method.
        own = {k: translated.pop(k) for k in list(translated) if k in _OWN_ATTRIBUTES}
        super().update_from_dict(translated)
        self._set_own(own)
        return self

    def _set_own(self, settings: Mapping[str, Any]) -> None:
        """Set DAPO's settings, which may have the names that users write."""
        for key, value in settings.items():
            name = _ALIASES.get(key, key)
            setattr(self, name, word_for(name, value))

    def get_evaluation_config_object(self) -> Any:
        """RLlib's hook: the settings of evaluation, or None if these are they.

        Raises:
            SettingError: `evaluation_config` has an unknown setting.
        """
        written = self.evaluation_config
        evaluation: Any = super().get_evaluation_config_object()
        if evaluation is not None and isinstance(written, Mapping):
            evaluation._set_own({name: getattr(self, name) for name in OTHER_NAMES})
            evaluation._set_own(meant_by(written))
        return evaluation

    def validate(self) -> None:
        """Refuse impossible settings before anything expensive starts.

        Raises:
            SettingError: names the setting, its value and the remedy.
            DataError: the data set cannot be used.
        """
        check_settings(self)
        preflight.check_before_rllib(self)
        super().validate()
        preflight.check(self)
