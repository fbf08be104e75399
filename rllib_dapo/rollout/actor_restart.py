"""The start of an actor that Ray has started again.

Ray starts an actor again when its process has ended, and never when its constructor raises.
But what a new process meets may pass: GPU memory that the one before has not given back yet,
a file server that is slow. So a failure ends the process instead, and Ray tries once more, as
often as `max_num_env_runner_restarts` says. The first start of all raises: its error is one
of the settings, and is to be seen.
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
    """True in an actor's process that is not the actor's first."""
    if not ray.is_initialized():
        return False
    context = ray.get_runtime_context()
    return context.get_actor_id() is not None and bool(context.was_current_actor_reconstructed)


@contextmanager
def tried_again(pause_s: float = _PAUSE_SECONDS) -> Iterator[None]:
    """Within a constructor: if it fails, end the process of an actor that was started again.

    Args:
        pause_s: how long to wait before, in seconds.

    Raises:
        Exception: what was raised within, in an actor's first process or in no actor at all.
    """
    try:
        yield
    except Exception:
        if not is_restarted_actor():
            raise
        logger.exception("the start of a runner failed; it is tried again")
        time.sleep(pause_s)
        os._exit(1)
