"""Which problems a run poses: the stream over those whose prompt fits."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_dapo.data.prompts import PromptTooLong
from rllib_dapo.data.stream import ProblemStream
from rllib_dapo.errors import SettingError
from rllib_dapo.prompting import make_renderer
from rllib_dapo.types import IntArray, ProblemRef

if TYPE_CHECKING:
    from rllib_dapo.dapo_config import DAPOConfig

logger = logging.getLogger(__name__)

# Rendering takes about 0.1 ms a problem; beyond this many, long prompts are found (dropped
# and counted) when they come up instead.
_LARGEST_SCAN = 100_000


class ProblemSource:
    """The training stream and the evaluation problems of a configuration.

    Prompts longer than `max_prompt_length` are left out when the data are loaded, so that
    they neither cost rounds of sampling nor pass unnoticed.

    Raises:
        SettingError: no problem is left.
    """

    def __init__(self, config: DAPOConfig) -> None:
        from rllib_dapo.registration import make_env

        env = make_env(config.env, config.env_config)
        self._fitting = _fitting_problems(env, config, "env_config")
        size = _num_problems(env) if self._fitting is None else len(self._fitting)
        self._stream = ProblemStream(size, config.seed or 0)

        evaluation = config.get_evaluation_config_object() or config
        self._evaluation_fitting, self._evaluation_size = self._fitting, _num_problems(env)
        if (evaluation.env, evaluation.env_config) != (config.env, config.env_config):
            env = make_env(evaluation.env, evaluation.env_config)
            self._evaluation_fitting = _fitting_problems(env, config, "evaluation_config")
            self._evaluation_size = _num_problems(env)

    @property
    def position(self) -> int:
        """Problems posed so far."""
        return self._stream.position

    def take(self, n: int) -> tuple[ProblemRef, ...]:
        """The next n problems to train on."""
        refs = self._stream.take(n)
        if self._fitting is None:
            return tuple(refs)
        return tuple(ProblemRef(r.position, int(self._fitting[r.index]), r.seed) for r in refs)

    def evaluation_refs(self, n: int) -> tuple[ProblemRef, ...]:
        """The same first n problems of the evaluation environment, every time."""
        indices = self._evaluation_fitting
        if indices is None:
            size = self._evaluation_size
            indices = np.arange(n if size is None else min(n, size))
        return tuple(ProblemRef(i, int(index), i) for i, index in enumerate(indices[:n]))

    def get_state(self) -> dict[str, Any]:
        """The place in the stream; plain values."""
        return dict(self._stream.get_state())

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to a saved place.

        Raises:
            SettingError: the state is of another data set or seed.
        """
        self._stream.set_state(state)


def _num_problems(env: Any) -> int | None:
    size: int | None = getattr(env.unwrapped, "num_problems", None)
    return size


def _fitting_problems(env: Any, config: DAPOConfig, setting: str) -> IntArray | None:
    """The indices of the problems whose prompt fits; None: not a finite, scannable set."""
    size = _num_problems(env)
    if size is None or size > _LARGEST_SCAN:
        return None
    renderer = make_renderer(config)
    fitting, longest = [], 0
    for index in range(size):
        observation, info = env.reset(seed=index, options={"index": index})
        try:
            renderer.render(info.get("messages", observation))
        except PromptTooLong as error:
            longest = max(longest, error.num_tokens)
        else:
            fitting.append(index)
    dropped = size - len(fitting)
    if not fitting:
        raise SettingError(
            f"max_prompt_length={config.max_prompt_length}: none of the {size} problems of "
            f"{setting} fits, the longest prompt has {longest} tokens; raise it",
            "max_prompt_length",
        )
    if dropped:
        logger.warning(
            "%d of %d problems (%s) are left out: their prompts are longer than "
            "max_prompt_length=%d tokens, the longest has %d",
            dropped, size, setting, config.max_prompt_length, longest,
        )  # fmt: skip
    return np.array(fitting, dtype=np.int64)
