"""DAPO (arXiv 2503.14476) as a Ray RLlib algorithm.

Importing this package makes the algorithm "DAPO" known to Tune and the environments to
gymnasium and RLlib. Neither torch nor vLLM is loaded before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rllib_dapo.algorithm.registration import register
from rllib_dapo.envs.make import make_env

if TYPE_CHECKING:
    from rllib_dapo.algorithm.dapo import DAPO, DAPOConfig

__all__ = ["DAPO", "DAPOConfig", "make_env", "register"]
__version__ = "0.1.0"

register()


def __getattr__(name: str) -> Any:
    """Load the algorithm's classes, and with them torch, on first use."""
    if name in ("DAPO", "DAPOConfig"):
        from rllib_dapo.algorithm import dapo

        return getattr(dapo, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
