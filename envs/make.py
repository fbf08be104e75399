"""Build an environment from its name, class or creator, or say what is wrong with it."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import gymnasium as gym

from rllib_dapo.errors import SettingError

ENVIRONMENTS: Mapping[str, str] = MappingProxyType(
    {
        "rllib_dapo/Arithmetic-v0": "rllib_dapo.envs.arithmetic:ArithmeticEnv",
        "rllib_dapo/Math-v0": "rllib_dapo.envs.math_env:MathEnv",
        "rllib_dapo/ReasoningGym-v0": "rllib_dapo.envs.reasoning_gym:ReasoningGymEnv",
    }
)
"""The environments of this package by id, each as `module:Class`."""


def make_env(
    env: str | type[gym.Env[Any, Any]] | Callable[..., gym.Env[Any, Any]],
    env_config: Mapping[str, Any] | None = None,
    *,
    columns: Mapping[str, bool] | None = None,
) -> gym.Env[Any, Any]:
    """Build an environment.

    Args:
        env: a gymnasium id (`module:id` imports the module that registers it), a name
            registered with `ray.tune.register_env` (which wins, as in RLlib), a class or
            another callable.
        env_config: the keyword arguments. Creators registered with Ray, and classes that take
            RLlib's single `config`, get the whole mapping instead.
        columns: the columns that the environment is to offer as `info["columns"]` in `reset`,
            each with whether it must exist. An environment that has a parameter `columns` gets
            them, together with those of `env_config`.

    Raises:
        SettingError: there is no such environment, or it does not accept these arguments.
    """
    config: Mapping[str, Any] = {} if env_config is None else env_config
    if not isinstance(env, str):
        return _checked(_call(env, _with_columns(env, config, columns)), env)
    if env not in ENVIRONMENTS:
        from ray.tune import registry

        known: Any = registry._global_registry  # Ray's own class is not annotated
        if known.contains(registry.ENV_CREATOR, env):
            creator = known.get(registry.ENV_CREATOR, env)
            return _checked(creator(_as_context(config)), env)
    elif env not in gym.registry:
        gym.register(env, entry_point=ENVIRONMENTS[env])
    try:
        module, _, name = env.rpartition(":")
        if module:  # `gym.make` would import the module, but `gym.spec` does not.
            importlib.import_module(module)
        spec = gym.spec(name)
    except (gym.error.Error, ImportError) as error:
        names = [*ENVIRONMENTS, *gym.registry]
        near = difflib.get_close_matches(env, names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise SettingError(
            f"env={env!r}: there is no such environment ({error}){hint} Register your own with"
            " ray.tune.register_env or gymnasium.register",
            "env",
        ) from error
    if spec.entry_point is not None:
        creator = spec.entry_point
        if isinstance(creator, str):
            creator = gym.envs.registration.load_env_creator(creator)
        config = _with_columns(creator, config, columns)
        _check_arguments(creator, {**spec.kwargs, **config})
    made: gym.Env[Any, Any] = gym.make(env, **config)
    return made


def _with_columns(
    creator: Callable[..., Any], config: Mapping[str, Any], columns: Mapping[str, bool] | None
) -> Mapping[str, Any]:
    """The arguments with the columns that are asked for, if the environment takes columns."""
    if not columns or "columns" not in _parameters(creator):
        return config
    own = config.get("columns") or {}
    own = dict(own) if isinstance(own, Mapping) else dict.fromkeys(own, True)
    return {**config, "columns": {**columns, **own}}


def _as_context(config: Mapping[str, Any]) -> Any:
    """Make RLlib's context, because a creator written for RLlib may read `worker_index`."""
    from ray.rllib.env.env_context import EnvContext

    return config if isinstance(config, EnvContext) else EnvContext(dict(config), 0)


def _call(creator: Callable[..., Any], config: Mapping[str, Any]) -> Any:
    parameters = _parameters(creator)
    takes_config = next((n for n in ("config", "env_config") if n in parameters), None)
    if takes_config is not None and takes_config not in config:
        return creator(_as_context(config))
    _check_arguments(creator, config)
    return creator(**config)


def _parameters(creator: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(creator).parameters
    except (TypeError, ValueError):  # Some compiled classes have no signature.
        return {"kwargs": inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)}


def _check_arguments(creator: Callable[..., Any], config: Mapping[str, Any]) -> None:
    parameters = _parameters(creator)
    name = getattr(creator, "__name__", repr(creator))
    kinds = inspect.Parameter
    takes_any = any(p.kind is kinds.VAR_KEYWORD for p in parameters.values())
    named = {
        n: p
        for n, p in parameters.items()
        if p.kind in (kinds.KEYWORD_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    }
    for key in () if takes_any else config:
        if key not in named:
            choices = [n for n in named if n != "render_mode"]
            near = difflib.get_close_matches(str(key), choices, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise SettingError(
                f"env_config.{key}: {name} has no such setting{hint} Its settings are:"
                f" {', '.join(choices) or 'none'}",
                f"env_config.{key}",
            )
    for key, parameter in named.items():
        if parameter.default is kinds.empty and key not in config:
            raise SettingError(
                f"env_config.{key}: {name} needs this setting; give it a value",
                f"env_config.{key}",
            )


def _checked(env: Any, source: object) -> gym.Env[Any, Any]:
    if isinstance(env, gym.Env):
        return env
    raise SettingError(
        f"env={source!r}: it made a {type(env).__name__}, not a gymnasium environment; its creator"
        " must return a gymnasium.Env",
        "env",
    )
