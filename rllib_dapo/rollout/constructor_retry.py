"""The start of an actor that Ray has started again.

Ray starts an actor again when its process has ended, but never when its constructor raises.
In a new process, however, the cause of a failure may pass: the previous process may not have given
back its GPU memory yet, or a file server may be slow. Therefore a failure ends the process instead,
and Ray tries again, as often as `max_num_env_runner_restarts` says. An actor's first process
raises, because its error is probably one of the settings, which the user has to see.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import ray

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 5.0


def is_restarted_actor() -> bool:
    """True in a process in which Ray has started an actor again."""
    if not ray.is_initialized():
        return False
    context = ray.get_runtime_context()
    return context.get_actor_id() is not None and bool(context.was_current_actor_reconstructed)


@contextmanager
def retry_restart(pause_s: float = _PAUSE_SECONDS) -> Iterator[None]:
    """Within a constructor: if it fails in a restarted actor, end the process so that Ray retries.

    Args:
        pause_s: how long to wait before the process ends, in seconds.

    Raises:
        Exception: what was raised within, in an actor's first process or outside of actors.
    """
    try:
        yield
    except Exception:
        if not is_restarted_actor():
            raise
        logger.exception("the start of a runner failed; it is tried again")
        time.sleep(pause_s)
        os._exit(1)
