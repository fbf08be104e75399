"""Makes names known: environments to gymnasium and Ray, the algorithm to Tune.

Ray keeps its registry in the cluster's key-value store, so `ray.shutdown()` and a new
`ray.init()` lose it. `register` may be called any number of times and also hooks itself
behind every later `ray.init()`. Nothing heavy is imported: everything is registered by
reference and loaded where it is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym

from rllib_dapo.envs.make import ENVIRONMENTS, make_env

ALGORITHM = "DAPO"


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
