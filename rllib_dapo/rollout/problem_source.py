"""Which problems a run poses: the stream over those whose prompt fits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_dapo.data.mixture import MixedProblems, Mixture
from rllib_dapo.data.overlap import find_overlap
from rllib_dapo.data.problem_set import ProblemSet
from rllib_dapo.data.prompts import PromptRenderer
from rllib_dapo.data.stream import ProblemStream
from rllib_dapo.errors import DataError, SettingError
from rllib_dapo.types import IntArray, ProblemRef

if TYPE_CHECKING:
    from rllib_dapo.algorithm.config import DAPOConfig

logger = logging.getLogger(__name__)

# Rendering takes about 0.1 ms a problem; beyond this many different ones, long prompts are
# found (dropped and counted) when they come up instead.
_LARGEST_SCAN = 100_000
_CHUNK = 2_048  # prompts tokenised at once


class ProblemSource:
    """The training stream and the evaluation problems of a configuration.

    Prompts longer than `max_prompt_length` are left out when the data are loaded, so that
    they neither cost rounds of sampling nor pass unnoticed. Problems that are both trained
    and evaluated on are warned about.

    Raises:
        SettingError: no problem is left, in all or of one source.
    """

    def __init__(self, config: DAPOConfig) -> None:
        from rllib_dapo.algorithm.registration import make_env

        env = make_env(config.env, config.env_config)
        training = _Posed.of(env, config, "env_config")
        size = training.size if training.fitting is None else len(training.fitting)
        self._fitting = training.fitting
        self._stream = ProblemStream(size, config.seed or 0, training.mixture)

        evaluation = config.get_evaluation_config_object() or config
        self._evaluation = training
        if (evaluation.env, evaluation.env_config) != (config.env, config.env_config):
            env = make_env(evaluation.env, evaluation.env_config)
            self._evaluation = _Posed.of(env, config, "evaluation_config")
        if config.evaluation_interval:
            _warn_of_overlap(training, self._evaluation)

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
        """The same n problems of the evaluation environment, every time.

        They are its first ones; in a mixture the first ones of each source, by weight.
        """
        posed = self._evaluation
        order = np.arange(n if posed.size is None else min(n, posed.size))
        if posed.mixture is not None:
            order = posed.mixture.first(n)
        indices = (
            order if posed.fitting is None else posed.fitting[order[order < len(posed.fitting)]]
        )
        return tuple(
            ProblemRef(i, int(index), i, evaluation=True) for i, index in enumerate(indices[:n])
        )

    def get_state(self) -> dict[str, Any]:
        """The place in the stream; plain values."""
        return dict(self._stream.get_state())

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to a saved place.

        Raises:
            SettingError: the state is of another data set, mixture or seed.
        """
        self._stream.set_state(state)


@dataclass(frozen=True)
class _Posed:
    """The problems of one environment.

    Attributes:
        size: how many there are; None for endless.
        fitting: indices of those whose prompt fits; None: not a finite, scannable set.
        mixture: of the fitting ones, where they are of several sources.
        problems: their texts, of environments that tell (`env.unwrapped.problems`).
    """

    size: int | None
    fitting: IntArray | None
    mixture: Mixture | None
    problems: ProblemSet | MixedProblems | None

    @classmethod
    def of(cls, env: Any, config: DAPOConfig, setting: str) -> _Posed:
        inner = env.unwrapped
        size: int | None = getattr(inner, "num_problems", None)
        problems = getattr(inner, "problems", None)
        known = isinstance(problems, ProblemSet | MixedProblems) and len(problems) == size
        mixture = getattr(inner, "mixture", None)
        same = problems.distinct_of if known and problems is not None else None
        fitting = None if size is None else _fitting_problems(env, config, setting, size, same)
        if isinstance(mixture, Mixture) and fitting is not None:
            try:
                mixture = mixture.kept(fitting)
            except DataError as error:
                raise SettingError(
                    f"max_prompt_length={config.max_prompt_length} ({setting}): {error}, or raise"
                    " the limit",
                    "max_prompt_length",
                ) from error
        return cls(size, fitting, mixture, problems if known else None)


def _fitting_problems(
    env: Any, config: DAPOConfig, setting: str, size: int, same: IntArray | None
) -> IntArray | None:
    """The indices of the problems whose prompt fits; None: too many to look at.

    Args:
        env: poses them.
        config: says how they are rendered.
        setting: what to call the environment in messages.
        size: how many problems there are.
        same: int64[size], equal numbers for equal problems; None: each is looked at.
    """
    numbers = np.arange(size) if same is None else same
    _, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    if len(first) > _LARGEST_SCAN:
        return None
    renderer = PromptRenderer.from_settings(config)
    lengths = np.concatenate(
        [renderer.lengths(chunk) for chunk in _observations(env, first.tolist())]
    )[which]
    fitting = np.flatnonzero(lengths <= config.max_prompt_length)
    if not len(fitting):
        raise SettingError(
            f"max_prompt_length={config.max_prompt_length}: none of the {size} problems of "
            f"{setting} fits, the longest prompt has {lengths.max()} tokens; raise it",
            "max_prompt_length",
        )
    if len(fitting) < size:
        logger.warning(
            "%d of %d problems (%s) are left out: their prompts are longer than "
            "max_prompt_length=%d tokens, the longest has %d",
            size - len(fitting), size, setting, config.max_prompt_length, lengths.max(),
        )  # fmt: skip
    return fitting.astype(np.int64)


def _observations(env: Any, indices: list[int]) -> Iterator[list[Any]]:
    """What the environment poses at these indices, some at a time."""
    for start in range(0, len(indices), _CHUNK):
        posed = []
        for index in indices[start : start + _CHUNK]:
            observation, info = env.reset(seed=index, options={"index": index})
            posed.append(info.get("messages", observation))
        yield posed


def _warn_of_overlap(training: _Posed, evaluation: _Posed) -> None:
    """Say so when evaluation measures what was trained on."""
    if training is evaluation:
        if training.size is not None:
            logger.warning(
                "evaluation poses the %d training problems, so it does not measure what is new "
                "to the model: set env_config in evaluation_config to held-out problems",
                training.size,
            )
        return
    if training.problems is None or evaluation.problems is None:
        return
    overlap = find_overlap(training.problems, evaluation.problems)
    if overlap is not None:
        logger.warning(
            "%d evaluation problems are training problems too, for instance %s = %s (%r): remove "
            "them from one of both, or evaluation measures memory",
            overlap.count,
            overlap.evaluation.source,
            overlap.training.source,
            overlap.evaluation.text[:80],
        )
