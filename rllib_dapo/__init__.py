"""DAPO (arXiv 2503.14476) as a Ray RLlib algorithm.

Importing this package makes the algorithm "DAPO" known to Tune and the environments to
gymnasium and RLlib. Neither torch nor vLLM is loaded before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rllib_dapo.algorithm.registration import make_env, register

if TYPE_CHECKING:
    from rllib_dapo.algorithm.config import DAPOConfig
    from rllib_dapo.algorithm.dapo import DAPO

__all__ = ["DAPO", "DAPOConfig", "make_env", "register"]
__version__ = "0.1.0"

register()


def __getattr__(name: str) -> Any:
    """Load the algorithm's classes, and with them torch, on first use."""
    if name == "DAPO":
        from rllib_dapo.algorithm.dapo import DAPO

        return DAPO
    if name == "DAPOConfig":
        from rllib_dapo.algorithm.config import DAPOConfig

        return DAPOConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
