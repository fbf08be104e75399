"""Makes names known: environments to gymnasium and Ray, the algorithm to Tune.

Ray keeps its registry in the cluster's key-value store, so `ray.shutdown()` and a new
`ray.init()` lose it. `register` may be called any number of times and also hooks itself
behind every later `ray.init()`. Nothing heavy is imported: everything is registered by
reference and loaded where it is used.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import gymnasium as gym

from rllib_dapo.errors import SettingError

ALGORITHM = "DAPO"
ENVIRONMENTS: Mapping[str, str] = MappingProxyType(
    {
        "rllib_dapo/Arithmetic-v0": "rllib_dapo.envs.arithmetic:ArithmeticEnv",
        "rllib_dapo/Math-v0": "rllib_dapo.envs.math_env:MathEnv",
        "rllib_dapo/ReasoningGym-v0": "rllib_dapo.envs.reasoning_gym:ReasoningGymEnv",
    }
)
"""The environments by id, each `module:Class`."""


def register() -> None:
    """Register the environments and the algorithm, now and after every `ray.init()`."""
    for env_id, entry_point in ENVIRONMENTS.items():
        if env_id not in gym.registry:
            gym.register(env_id, entry_point=entry_point)
    _register_with_ray()
    from ray._private import worker

    # Ray's own registry flushes through this list; there is no public hook behind init.
    if _register_with_ray not in worker._post_init_hooks:
        worker._post_init_hooks.append(_register_with_ray)


def make_env(
    env: str | type[gym.Env[Any, Any]] | Callable[..., gym.Env[Any, Any]],
    env_config: Mapping[str, Any] | None = None,
) -> gym.Env[Any, Any]:
    """Build an environment.

    Args:
        env: a gymnasium id (`module:id` imports the module that registers it), a name
            registered with `ray.tune.register_env` (which wins, as in RLlib), a class or
            another callable.
        env_config: keyword arguments; handed over whole to creators registered with Ray and
            to classes that take RLlib's single `config`.

    Raises:
        SettingError: there is no such environment, or it does not take these arguments.
    """
    config: Mapping[str, Any] = {} if env_config is None else env_config
    if not isinstance(env, str):
        return _checked(_call(env, config), env)
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
        if module:  # `gym.make` would import it, `gym.spec` does not
            importlib.import_module(module)
        spec = gym.spec(name)
    except (gym.error.Error, ImportError) as error:
        names = [*ENVIRONMENTS, *gym.registry]
        near = difflib.get_close_matches(env, names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SettingError(
            f"env={env!r}: no such environment ({error}){hint} Register your own with"
            " ray.tune.register_env or gymnasium.register",
            "env",
        ) from error
    if spec.entry_point is not None:
        creator = spec.entry_point
        if isinstance(creator, str):
            creator = gym.envs.registration.load_env_creator(creator)
        _check_arguments(creator, {**spec.kwargs, **config})
    made: gym.Env[Any, Any] = gym.make(env, **config)
    return made


def _register_with_ray() -> None:
    from ray.tune import registry

    for env_id in ENVIRONMENTS:
        registry.register_env(env_id, partial(_create, env_id))
    # register_trainable wants the class itself, and with it torch. What is stored is its
    # pickle, so an object that unpickles to the class stands in for it.
    registry._global_registry.register(registry.TRAINABLE_CLASS, ALGORITHM, _AlgorithmReference())


def _create(env_id: str, env_config: Mapping[str, Any]) -> gym.Env[Any, Any]:
    return make_env(env_id, env_config)


class _AlgorithmReference:
    """Pickles as a reference to the algorithm's class."""

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _algorithm_class, ()


def _algorithm_class() -> Any:
    return importlib.import_module("rllib_dapo.algorithm.dapo").DAPO


def _as_context(config: Mapping[str, Any]) -> Any:
    """Creators written for RLlib may read `worker_index` of their argument."""
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
    except (TypeError, ValueError):  # some compiled classes have no signature
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
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise SettingError(
                f"env_config.{key}: {name} has no such setting; {hint}It has"
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
        f"env={source!r}: it made a {type(env).__name__}, no gymnasium environment; its creator"
        " must return a gymnasium.Env",
        "env",
    )
