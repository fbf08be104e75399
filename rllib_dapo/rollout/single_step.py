"""Refuses environments of several turns: DAPO samples one completion for each episode."""

from __future__ import annotations

from typing import Any

from rllib_dapo.errors import SettingError


class MultiTurnError(SettingError):
    """An environment goes on after its first step."""


def require_end(env: Any, terminated: Any, truncated: Any) -> None:
    """Refuse a step that did not end its episode.

    An environment may end it either way; the reward counts in both cases.

    Args:
        env: the environment, whose name the message has.
        terminated: what `step` returned.
        truncated: what `step` returned.

    Raises:
        MultiTurnError: both are false.
    """
    if terminated or truncated:
        return
    inner = getattr(env, "unwrapped", env)
    spec = getattr(env, "spec", None) or getattr(inner, "spec", None)
    name = spec.id if spec is not None else type(inner).__name__
    raise MultiTurnError(
        f"env={name!r}: `step` returned terminated=False and truncated=False, so the episode would "
        "go on with another turn. Only environments of a single step are supported: `step` gets "
        "the whole completion, and has to return its reward with terminated=True",
        "env",
    )


def try_single_step(env: Any) -> None:
    """Play one episode with an empty completion, to refuse an environment of several turns early.

    What else goes wrong is left to the episodes that count: an environment need not know what to
    do with an empty completion.

    Raises:
        MultiTurnError: the environment goes on after its first step.
    """
    try:
        env.reset(seed=0, options={"index": 0, "position": 0})
        _, _, terminated, truncated, _ = env.step("")
    except Exception:  # noqa: BLE001 - a foreign environment may raise anything
        return
    require_end(env, terminated, truncated)
