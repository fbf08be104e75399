"""Names the reason when no runner starts.

RLlib logs why a runner could not start and goes on with the others. If none is left, it fails with
an IndexError when it asks the first one for its spaces.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rllib_dapo.errors import EngineError

_LOGGER = "ray.rllib.env.env_runner_group"
_MESSAGE = "Validation of EnvRunner failed! Error="


class _Failures(logging.Handler):
    """Keeps what RLlib says of runners that could not start."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith(_MESSAGE):
            self.texts.append(text.removeprefix(_MESSAGE))


@contextmanager
def failed_starts_named() -> Iterator[None]:
    """Around the making of runners: turn RLlib's IndexError into the reason of the first failure.

    Raises:
        EngineError: no runner could start.
    """
    failures, log = _Failures(), logging.getLogger(_LOGGER)
    log.addHandler(failures)
    try:
        yield
    except IndexError as error:
        if not failures.texts:
            raise
        raise EngineError(
            f"none of the {len(failures.texts)} runners could start. The first one: "
            f"{_reason(failures.texts[0])}. Correct that, or try `num_env_runners: 0`, which "
            "starts the engine in the main process and shows all that it says"
        ) from error
    finally:
        log.removeHandler(failures)


def _reason(text: str) -> str:
    """The last line of a traceback, which names the error; without one the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["unknown"]
    named = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (named[-1] if named else lines[0]).rstrip(".")[:500]
