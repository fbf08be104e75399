"""Which problems a run poses: a stream over the problems whose prompt fits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from rllib_dapo.data.mixture import MixedProblems, Mixture
from rllib_dapo.data.overlap import find_overlap
from rllib_dapo.data.problem_set import ProblemSet
from rllib_dapo.data.prompts import PromptRenderer
from rllib_dapo.data.stream import ProblemStream
from rllib_dapo.errors import DataError, SettingError
from rllib_dapo.rollout.single_step import try_single_step
from rllib_dapo.rollout.text_episodes import find_score_group, make_env_of
from rllib_dapo.settings.run import RunSettings
from rllib_dapo.types import IntArray, ProblemRef

logger = logging.getLogger(__name__)

# Rendering takes about 0.1 ms a problem. Of more different problems than this, those with long
# prompts are found, dropped and counted when they come up.
_LARGEST_SCAN = 100_000
_CHUNK = 2_048  # the number of prompts tokenised at once


class ProblemSource:
    """The training stream and the evaluation problems of a configuration.

    Problems whose prompt is longer than `max_prompt_length` are left out of training when the
    data are loaded, so that they cost no sampling and are reported at the start. A warning names
    problems that are in the training and in the evaluation data.

    Raises:
        SettingError: no problem fits, in the whole data or in one source of a mixture; or an
            environment has several turns.
    """

    def __init__(self, config: RunSettings) -> None:
        env = make_env_of(config)
        _try_environment(env)
        training = _Posed.of(env, config, "env_config")
        size = training.size if training.fitting is None else len(training.fitting)
        self._fitting = training.fitting
        self._stream = ProblemStream(size, config.seed or 0, training.mixture, training.shuffle)
        self._data = training.fingerprint
        self._warns_of_other_data = training.on_changed_data == "warn"

        evaluation = config.get_evaluation_config_object() or config
        self._evaluation = training
        if (evaluation.env, evaluation.env_config) != (config.env, config.env_config):
            env = make_env_of(evaluation)
            _try_environment(env)
            self._evaluation = _Posed.of(env, evaluation, "evaluation_config")
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
        """The first n problems of the evaluation environment, the same ones every time.

        In a mixture they are the first problems of each source, in proportion to the weights.
        Those whose prompt is too long are among them: they fail, and count as wrong.
        """
        posed = self._evaluation
        indices = np.arange(n if posed.size is None else min(n, posed.size))
        if posed.whole_mixture is not None:
            indices = posed.whole_mixture.first(n)
        return tuple(
            ProblemRef(i, int(index), i, evaluation=True) for i, index in enumerate(indices[:n])
        )

    def source_name(self, ref: ProblemRef) -> str | None:
        """The source of an evaluation problem, if these are a mixture."""
        problems = self._evaluation.problems
        return problems.source_name(ref.index) if isinstance(problems, MixedProblems) else None

    def get_state(self) -> dict[str, Any]:
        """The place in the stream, and a fingerprint of the problems, as plain values."""
        return {**self._stream.get_state(), **({"data": self._data} if self._data else {})}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to a saved place.

        Raises:
            SettingError: the state belongs to another data set, mixture or seed.
        """
        saved = state.get("data")
        if saved is not None and saved != self._data:
            message = (
                "the problems, their ground truths or their order are not those of the saved run"
                f" (fingerprint {str(saved)[:12]}, now {str(self._data)[:12]})"
            )
            if not self._warns_of_other_data:
                raise SettingError(
                    f"env_config.dataset: {message}; restore with the data of the saved run, set"
                    " env_config.on_changed_data: warn to go on with the new ones, or start a new"
                    " run from its weights",
                    "env_config.dataset",
                )
            logger.warning("%s; the run goes on with the new ones", message)
        self._stream.set_state(state)


@dataclass(frozen=True)
class _Posed:
    """The problems of one environment.

    Attributes:
        size: the number of problems; None if there is no end.
        fitting: the indices of the problems whose prompt fits; None if the set is endless, or too
            large to look at.
        mixture: the mixture over the fitting problems, if they come from several sources.
        whole_mixture: the mixture over all problems, if they come from several sources.
        problems: the texts of the problems, if the environment has `env.unwrapped.problems`.
        shuffle: whether each epoch has an order of its own (`env.unwrapped.shuffle`).
        on_changed_data: `error` or `warn`, when a restored run finds other problems.
    """

    size: int | None
    fitting: IntArray | None
    mixture: Mixture | None
    whole_mixture: Mixture | None
    problems: ProblemSet | MixedProblems | None
    shuffle: bool = True
    on_changed_data: str = "error"

    @property
    def fingerprint(self) -> str | None:
        """A hash of the problems that fit and their ground truths, in order; None if unknown."""
        if self.problems is None:
            return None
        digests = self.problems.digests()
        chosen = digests if self.fitting is None else digests[self.fitting]
        return blake2b(chosen.tobytes(), digest_size=16).hexdigest()

    @classmethod
    def of(cls, env: Any, config: RunSettings, setting: str) -> _Posed:
        inner = env.unwrapped
        size: int | None = getattr(inner, "num_problems", None)
        problems = getattr(inner, "problems", None)
        known = isinstance(problems, ProblemSet | MixedProblems) and len(problems) == size
        mixture = whole_mixture = getattr(inner, "mixture", None)
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
        return cls(
            size,
            fitting,
            mixture,
            whole_mixture,
            problems if known else None,
            bool(getattr(inner, "shuffle", True)),
            str(getattr(inner, "on_changed_data", "error")),
        )


def _fitting_problems(
    env: Any, config: RunSettings, setting: str, size: int, same: IntArray | None
) -> IntArray | None:
    """The indices of the problems whose prompt fits; None if there are too many to look at.

    Args:
        env: the environment that poses the problems.
        config: the settings that say how problems are rendered.
        setting: the name of the environment in messages.
        size: the number of problems.
        same: int64[size], equal numbers for equal problems; None looks at each problem.
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
            "%d of %d problems (%s) %s: their prompts are longer than "
            "max_prompt_length=%d tokens, the longest has %d",
            size - len(fitting), size, setting,
            "count as wrong" if setting == "evaluation_config" else "are left out",
            config.max_prompt_length, lengths.max(),
        )  # fmt: skip
    return fitting.astype(np.int64)


def _observations(env: Any, indices: list[int]) -> Iterator[list[Any]]:
    """What the environment poses at these indices, in chunks."""
    for start in range(0, len(indices), _CHUNK):
        posed = []
        for index in indices[start : start + _CHUNK]:
            observation, info = env.reset(seed=index, options={"index": index})
            posed.append(info.get("messages", observation))
        yield posed


def _try_environment(env: Any) -> None:
    """Refuse an environment of several turns before engines start."""
    if find_score_group(env) is None:  # otherwise no completion is played by `step`
        try_single_step(env)


def _warn_of_overlap(training: _Posed, evaluation: _Posed) -> None:
    """Warn if some evaluation problems are also training problems."""
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
