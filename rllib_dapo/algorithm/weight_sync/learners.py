"""Functions that the driver calls in the processes of all learners at once.

RLlib ends a learner in which a function raises. Here, a failure is returned as a value instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from torch import Tensor

from rllib_dapo.errors import EngineError
from rllib_dapo.model.causal_lm import compute_context
from rllib_dapo.model.device import Place, place_of
from rllib_dapo.model.packed_attention import packed_inputs
from rllib_dapo.model.packing import PackedRows
from rllib_dapo.model.sharding import is_sharded, reshard, run_as_forward
from rllib_dapo.settings.choices import ComputeDtype
from rllib_dapo.types import FloatArray, IntArray

_T = TypeVar("_T")

PROBE_TOKENS = 48


@dataclass(frozen=True, slots=True)
class LearnerFailure:
    """What a learner returns where its function raised."""

    reason: str


def ask_learners(learner_group: Any, function: Callable[[Any], _T]) -> list[_T]:
    """Call a function with each learner, in its process, all at the same time.

    Returns:
        What it returned, by rank.

    Raises:
        TrainingError: a learner is lost; the others would wait for it in collective calls.
        EngineError: the function raised in one of them.
    """
    # `DAPOLearnerGroup` calls all or none, and raises if one is lost.
    results = learner_group.foreach_learner(partial(_guarded, function=function))
    answers = [result.get() for result in results]
    for answer in answers:
        if isinstance(answer, LearnerFailure):
            raise EngineError(f"weights could not be sent: {answer.reason}")
    return answers


def ask_first_learner(learner_group: Any, function: Callable[[Any], _T | None]) -> _T:
    """What `function` returned in the first learner; it runs in all, and returns None elsewhere.

    Raises:
        TrainingError: a learner is lost.
        EngineError: the function raised in one of them.
    """
    return next(a for a in ask_learners(learner_group, function) if a is not None)


def _guarded(learner: Any, function: Callable[[Any], _T]) -> _T | LearnerFailure:
    try:
        return function(learner)
    except Exception as error:  # noqa: BLE001 - returned, because RLlib would end the learner
        return LearnerFailure(f"{type(error).__name__}: {error}")


def policy(learner: Any) -> Any:
    """A learner's RLModule."""
    return learner.module[DEFAULT_MODULE_ID]


def learner_places(learner_group: Any) -> list[Place]:
    """Where each learner computes."""
    return ask_learners(learner_group, _place)


def _place(learner: Any) -> Place:
    return place_of(learner.device)


# -- The probe: a fixed text, to compare engines with the learner -------------------------------


@dataclass(frozen=True, slots=True)
class Probe:
    """A fixed text, and what the learner makes of it.

    Attributes:
        token_ids: the text, T tokens.
        logprobs: float32[T-1], log p(token t | tokens before t) for t ≥ 1, in nats.
    """

    token_ids: list[int]
    logprobs: FloatArray


def learner_probe(learner: Any) -> Probe:
    """The probe with this learner's weights; a collective call if the model is sharded."""
    module, config = policy(learner), learner.config
    longest = config.max_prompt_length + config.max_completion_length
    token_ids = probe_text(module.causal_lm.config.vocab_size, longest)
    return Probe(token_ids, learner_logprobs(module, token_ids))


def probe_text(vocabulary: int, longest: int) -> list[int]:
    """A fixed sequence of token ids that depends on nothing but the arguments.

    Args:
        vocabulary: all ids are below this.
        longest: how many tokens the engine takes.
    """
    length = max(2, min(PROBE_TOKENS, longest - 1))  # the engine samples one more
    return [int(i) for i in np.random.default_rng(0).integers(0, vocabulary, length)]


@torch.no_grad()
def learner_logprobs(module: Any, token_ids: Sequence[int]) -> FloatArray:
    """float32[T-1], log p(token t | tokens before t) at temperature 1, for t ≥ 1.

    Computed as in training, with the same attention and the same precision; a collective call
    if the model is sharded.

    Args:
        module: the RLModule.
        token_ids: one text of T tokens.
    """
    causal_lm, config = module.causal_lm, module.model_config
    device = next(causal_lm.parameters()).device
    ids = np.asarray(token_ids, np.int64)[None]

    def compute() -> dict[str, Tensor]:
        dtype: ComputeDtype = "float32" if is_sharded(causal_lm) else config["compute_dtype"]
        head = causal_lm.get_output_embeddings()
        with compute_context(dtype, device.type):
            output = causal_lm.base_model(**_inputs(ids, config["packing"], device))
            logits = head(output.last_hidden_state[0, :-1]).float()
        targets = torch.from_numpy(ids[0, 1:]).to(device)
        return {"logprobs": logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]}

    logprobs = run_as_forward(causal_lm, compute)["logprobs"]
    reshard(causal_lm)
    result: FloatArray = logprobs.cpu().numpy().astype(np.float32)
    return result


def _inputs(ids: IntArray, packing: bool, device: torch.device) -> dict[str, Any]:
    """One row for the model, in the layout that its attention was made for."""
    if not packing:
        tokens = torch.from_numpy(ids).to(device)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    length = ids.shape[1]
    row = PackedRows(
        input_ids=ids,
        position_ids=np.arange(length)[None],
        predictors=np.arange(length - 1),
        targets=ids[0, 1:],
        lengths=np.array([length]),
        gather=None,
        scatter=None,
    )
    return dict(packed_inputs(row, device))
