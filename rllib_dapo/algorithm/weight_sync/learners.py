"""Questions to all learners at once, answered in their processes.

RLlib ends a learner in which a function raises; here a failure is an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_dapo.algorithm.weight_sync.parity import learner_logprobs, probe_text
from rllib_dapo.errors import EngineError
from rllib_dapo.model.device import Place, place_of

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LearnerFailure:
    """What a learner answers where its function raised."""

    reason: str


def ask_learners(learner_group: Any, function: Callable[[Any], _T]) -> list[_T]:
    """Call a function with each learner, in its process, all at the same time.

    Returns:
        What it returned, by rank.

    Raises:
        TrainingError: a learner is lost; what they do together would wait for it.
        EngineError: the function raised in one of them.
    """
    # `DAPOLearnerGroup` calls all or none, and raises if one is lost.
    results = learner_group.foreach_learner(partial(_guarded, function=function))
    answers = [result.get() for result in results]
    for answer in answers:
        if isinstance(answer, LearnerFailure):
            raise EngineError(f"weights could not be sent: {answer.reason}")
    return answers


def learner_places(learner_group: Any) -> list[Place]:
    """Where each learner computes."""
    return ask_learners(learner_group, _place)


def policy(learner: Any) -> Any:
    """A learner's RLModule."""
    return learner.module[DEFAULT_MODULE_ID]


@dataclass(frozen=True, slots=True)
class Probe:
    """A fixed text, and what the learner makes of it.

    Attributes:
        token_ids: the text.
        logprobs: float32[len(token_ids) - 1], nats.
    """

    token_ids: list[int]
    logprobs: Any


def learner_probe(learner: Any) -> Probe:
    """The probe with this learner's weights; of a sharded model a collective call."""
    module, config = policy(learner), learner.config
    longest = config.max_prompt_length + config.max_completion_length
    token_ids = probe_text(module.causal_lm.config.vocab_size, longest)
    return Probe(token_ids, learner_logprobs(module, token_ids))


def _place(learner: Any) -> Place:
    return place_of(learner.device)


def _guarded(learner: Any, function: Callable[[Any], _T]) -> _T | LearnerFailure:
    try:
        return function(learner)
    except Exception as error:  # noqa: BLE001 - an answer, or the learner would be ended
        return LearnerFailure(f"{type(error).__name__}: {error}")
