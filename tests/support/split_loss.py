"""A minibatch's loss and gradient for any split, and the loss as the papers write it."""

from __future__ import annotations

import math

import numpy as np
import torch
from strategies import VOCABULARY, rows_of

from rllib_dapo.losses.aggregation import kept_lengths, loss_totals, loss_weights
from rllib_dapo.losses.clipped_objective import (
    clipped_objective,
    sequence_log_ratio,
    token_log_ratio,
    weighted_loss,
)
from rllib_dapo.losses.logprobs import token_logprobs_and_entropy
from rllib_dapo.model.batching import pad_rows, select

MAX_LENGTH = 6  # L_max of the `constant` aggregation


def clipped(log_ratio, advantage):
    """Eq. 10 for one token, with the paper's bounds."""
    ratio = math.exp(log_ratio)
    return min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)


def reference_loss(batch, logprobs, aggregation, level):
    """Minus the mean over kept tokens, in loops over groups, sequences and tokens."""
    by_group, start = {}, 0
    for _, completion, old, advantage, kept, group, *_ in rows_of(batch):
        place = slice(start, start + len(completion))
        start += len(completion)
        rows = zip(logprobs[place], old, batch.importance_weights[place].tolist(), strict=True)
        tokens = [(new - o, w) for new, o, w in rows if kept and w > 0]
        if not tokens:
            continue
        if level == "sequence":
            mean = sum(x for x, _ in tokens) / len(tokens)
            tokens = [(mean, w) for _, w in tokens]
        values = [w * clipped(x, advantage) for x, w in tokens]
        by_group.setdefault(group, []).append(values)
    sequences = [values for group in by_group.values() for values in group]
    if not sequences:
        return 0.0
    if aggregation == "token_mean":
        return -sum(map(sum, sequences)) / sum(map(len, sequences))
    if aggregation == "sequence_mean":
        return -sum(sum(v) / len(v) for v in sequences) / len(sequences)
    if aggregation == "constant":
        return -sum(map(sum, sequences)) / (len(sequences) * MAX_LENGTH)
    means = [sum(map(sum, g)) / sum(map(len, g)) for g in by_group.values()]
    return -sum(means) / len(means)


class Policy:
    """Hidden state of a position: tanh of the mean embedding so far. float64."""

    def __init__(self, seed: int = 0, width: int = 4) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.parameters = [
            torch.randn(
                VOCABULARY, width, generator=generator, dtype=torch.float64
            ).requires_grad_()
            for _ in range(2)
        ]

    def logprobs(self, padded):
        embedding, head = self.parameters
        total = embedding[torch.from_numpy(padded.input_ids)].cumsum(1)
        hidden = torch.tanh(total / torch.from_numpy(padded.position_ids + 1)[..., None])
        states = hidden.reshape(-1, head.shape[1])[torch.from_numpy(padded.predictors)]
        targets = torch.from_numpy(padded.targets)
        return token_logprobs_and_entropy(states, head, targets, chunk_tokens=5)[0]


def lengths_of(part):
    return kept_lengths(part.completion_lengths, part.loss_mask, part.importance_weights > 0)


def totals_of(part, num_groups):
    return loss_totals(lengths_of(part), part.groups, num_groups)


def part_loss(policy, part, aggregation, level, totals, pad_id):
    """The loss of the rows of one forward pass, as a learner computes it."""
    lengths = torch.from_numpy(part.completion_lengths)
    weights = loss_weights(
        aggregation, lengths_of(part), part.groups, totals, max_length=MAX_LENGTH
    )
    importance = torch.from_numpy(part.importance_weights).double()
    token_weights = torch.from_numpy(weights).repeat_interleave(lengths) * importance
    keep = token_weights > 0
    logprobs = policy.logprobs(pad_rows(part, pad_id))
    log_ratio = token_log_ratio(logprobs, torch.from_numpy(part.old_logprobs).double(), keep)
    if level == "sequence":
        ids = torch.arange(len(part)).repeat_interleave(lengths)
        log_ratio = sequence_log_ratio(log_ratio, ids, len(part), keep)
    advantages = torch.from_numpy(part.advantages).double().repeat_interleave(lengths)
    objective = clipped_objective(log_ratio, advantages, token_mask=keep).objective
    return weighted_loss(objective, token_weights)


def loss_and_gradient(
    batch, aggregation="token_mean", level="token", *, split=None, pad_id=0, mistake=None
):
    """Loss and flat gradient, added up over learners and micro-batches.

    Args:
        split: (learner, micro-batch) of each row; None for one forward pass of all.
        mistake: None, or the part whose own totals are wrongly used: "learner" or
            "microbatch"; "…_mean" divides by the number of these parts as well.
    """
    policy = Policy()
    split = [(0, 0)] * len(batch) if split is None else split
    num_groups = int(batch.groups.max(initial=-1)) + 1
    learners = {key: [k == key for k, _ in split] for key, _ in split}
    parts = {key: [k == key for k in split] for key in split}

    def totals(rows):
        return totals_of(select(batch, np.array(rows)), num_groups)

    # What the learners all-reduce: each adds its own totals.
    whole = sum(map(totals, learners.values()), np.zeros(1 + num_groups, np.int64))
    total = 0.0
    gradient = [torch.zeros_like(p) for p in policy.parameters]
    for (learner, _), rows in parts.items():
        used = {None: whole, "learner": totals(learners[learner]), "microbatch": totals(rows)}
        part = select(batch, np.array(rows))
        kind, _, mean = (mistake or "").partition("_")
        scale = 1 / len(learners if kind == "learner" else parts) if mean else 1.0
        loss = scale * part_loss(policy, part, aggregation, level, used[kind or None], pad_id)
        total += loss.item()
        for i, g in enumerate(torch.autograd.grad(loss, policy.parameters)):
            gradient[i] += g
    return total, torch.cat([g.flatten() for g in gradient])
