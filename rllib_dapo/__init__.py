"""DAPO (arXiv 2503.14476) as a Ray RLlib algorithm.

Importing this package makes the algorithm "DAPO" known to Tune and the environments to
gymnasium and RLlib. Neither torch nor vLLM is loaded before it is needed. `rllib_dapo.losses`
and `rllib_dapo.model` can be imported without Ray, vLLM and gymnasium.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllib_dapo.algorithm.dapo import DAPO, DAPOConfig
    from rllib_dapo.algorithm.registration import register
    from rllib_dapo.envs.make import make_env

__all__ = ["DAPO", "DAPOConfig", "make_env", "register"]
__version__ = "0.1.0"

_MODULES = {
    "DAPO": "rllib_dapo.algorithm.dapo",
    "DAPOConfig": "rllib_dapo.algorithm.dapo",
    "make_env": "rllib_dapo.envs.make",
    "register": "rllib_dapo.algorithm.registration",
}


def __getattr__(name: str) -> Any:
    """Import public names, and with them torch and Ray, on first use."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


try:
    import_module("rllib_dapo.algorithm.registration").register()
except ModuleNotFoundError as error:  # There is nothing to register with.
    if error.name not in ("ray", "gymnasium"):
        raise
