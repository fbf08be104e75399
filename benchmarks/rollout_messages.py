"""Bytes of what driver and runners send each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from ray import cloudpickle
from ray.rllib.utils.actor_manager import _method_caller

from rllib_dapo.rollout.engine.base import Sampling
from rllib_dapo.rollout.sampling_job import RunnerReply, SamplingJob
from rllib_dapo.types import Completion, Group, ProblemRef, Prompt


def size(message: Any) -> int:
    """Bytes of a message as Ray pickles it, arrays included."""
    buffers: list[Any] = []
    body = cloudpickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return len(body) + sum(buffer.raw().nbytes for buffer in buffers)


def job(problems: int) -> SamplingJob:
    """A job of so many problems."""
    refs = tuple(ProblemRef(100_000 + i, 1_000_000 + i, 2**40 + i) for i in range(problems))
    return SamplingJob(refs, 16, Sampling(1.0, 1.0, 8192), 0, 1000)


def reply(groups: int, *, answers: int = 16, tokens: int = 0, characters: int = 1) -> RunnerReply:
    """A reply of so many groups, each of whose answers has so many tokens."""
    completions = tuple(
        Completion(
            token_ids=np.zeros(tokens, np.int64),
            logprobs=np.zeros(tokens, np.float32),
            text=chr(97 + i) * (tokens * characters),
            finish_reason="stop",
            score=1.0,
            correct=True,
            info={"correct": True},
            versions=((0, 1000),),
        )
        for i in range(answers)
    )
    prompt = Prompt(np.zeros(100, np.int64), "p" * 100)
    return RunnerReply(
        tuple(Group(job(1).refs[0], prompt, completions, 1000) for _ in range(groups)), 5
    )


def measure() -> dict[str, float]:
    """Bytes of each kind of message, and what a token and an answer add."""
    one_token = size(reply(1, tokens=2000)) - size(reply(1, tokens=1000))
    return {
        "RLlib's part of a call": size(_method_caller("collect")),
        "sampling job of 1 problem": size(job(1)),
        "each further problem": (size(job(101)) - size(job(1))) / 100,
        "reply without groups": size(reply(0)),
        "group of 16 completions without tokens": size(reply(1)) - size(reply(0)),
        "each token of a completion, at 1 character": one_token / 16 / 1000,
        "each further character": (
            size(reply(1, tokens=1000, characters=2)) - size(reply(1, tokens=1000))
        )
        / 16_000,
    }
