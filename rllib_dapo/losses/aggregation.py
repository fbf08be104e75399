"""The weights w_i with which the tokens of each sequence i of a minibatch are averaged.

    loss = − Σ_i Σ_t  w_i · objective_{i,t}

    kept_lengths  -> |o_i|, the number of tokens of each completion that are in the loss
    loss_totals   -> sums of these; the totals of parts add up to those of the whole
    loss_weights  -> w_i, from a part's |o_i| and the totals of the *whole* minibatch

The whole minibatch comprises all micro-batches of all learners. Therefore the losses and gradients
of any split add up to those of the whole, also where the completions of one group are in
several parts.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import numpy.typing as npt

from rllib_dapo.errors import SettingError, TrainingError
from rllib_dapo.settings.checks import check_value
from rllib_dapo.settings.choices import Aggregation
from rllib_dapo.types import BoolArray, IntArray


def kept_lengths(
    completion_lengths: IntArray, loss_mask: BoolArray, token_mask: BoolArray
) -> IntArray:
    """Count the tokens of each completion that are in the loss, |o_i|.

    A masked token is in neither numerator nor denominator, as if it had never been sampled.

    Args:
        completion_lengths: int64[B], tokens of each completion.
        loss_mask: bool[B], False for completions taken out as a whole.
        token_mask: bool[sum(completion_lengths)], False for single tokens taken out (their
            importance weight is 0).

    Returns:
        int64[B]; 0 for masked completions and for completions without a kept token.
    """
    owner = np.repeat(np.arange(len(completion_lengths)), completion_lengths)
    kept = np.bincount(owner[token_mask], minlength=len(completion_lengths))
    return np.where(loss_mask, kept, 0).astype(np.int64)


def loss_totals(lengths: IntArray, groups: IntArray, num_groups: int) -> IntArray:
    """Count what the denominators are computed from.

    The totals of micro-batches and of learners add up, element by element, to those of the
    whole minibatch.

    Args:
        lengths: int64[B], from `kept_lengths`.
        groups: int64[B], which group (0 … num_groups − 1) each sequence belongs to.
        num_groups: the number of groups of the whole minibatch, the same for all its parts.

    Returns:
        int64[1 + num_groups]: the number of sequences with a kept token, then the number of
        kept tokens of group 0, 1, ….

    Raises:
        TrainingError: a group number is not below `num_groups`.
    """
    outside = np.flatnonzero((groups < 0) | (groups >= num_groups))
    if len(outside):
        raise TrainingError(
            f"groups[{outside[0]}]={groups[outside[0]]} is not one of num_groups={num_groups}: "
            "count the groups of the whole minibatch, on all learners"
        )
    totals = np.zeros(1 + num_groups, dtype=np.int64)
    totals[0] = np.count_nonzero(lengths)
    np.add.at(totals, 1 + groups, lengths)
    return totals


def loss_weights(
    aggregation: Aggregation,
    lengths: IntArray,
    groups: IntArray,
    totals: IntArray,
    *,
    max_length: int,
) -> npt.NDArray[np.float64]:
    """Compute the weight w_i of every kept token of sequence i.

    ```
    token_mean         1 / Σ_j |o_j|                     DAPO, Eq. 12 over the minibatch
    sequence_mean      1 / (B · |o_i|)                   GRPO (Eq. 5 of DAPO)
    constant           1 / (B · L_max)                   Dr. GRPO, arXiv 2503.20783
    group_token_mean   1 / (N · Σ_{j in g(i)} |o_j|)     DAPO, Eqs. 8 and 12 literally
    ```

    |o_i| is the number of kept tokens; B sequences and N groups have a kept token; g(i) is
    the group of i. All sums run over the whole minibatch. Sequences without a kept token are
    in none of them, so masking a completion gives the same loss as never having sampled it.

    DAPO's Eq. 12 is the token mean of *one* group, inside an expectation over questions.
    `group_token_mean` is this mean, and the groups of a minibatch are whole
    (`settings.checks` refuses other minibatches for it).
    `token_mean` takes one mean over all tokens of the minibatch, where groups with long
    completions weigh more. The paper's recipe takes this mean too, but for each micro-batch.

    Dr. GRPO does not divide by |o_i|; L_max is its constant. The weights of all other
    aggregations sum to 1 over the tokens.

    Args:
        aggregation: the choice of weights.
        lengths: int64[B], `kept_lengths` of the sequences of a part.
        groups: int64[B], their groups.
        totals: int64[1 + num_groups], the sum of `loss_totals` over all parts of the
            minibatch.
        max_length: L_max, tokens; used by `constant` only.

    Returns:
        float64[B], 0 for sequences without a kept token; all 0 (no NaN) if nothing is kept.

    Raises:
        SettingError: `loss_aggregation` is unknown, or `constant` has an L_max below 1.
    """
    sequences, group_tokens = totals[0], totals[1:]
    match aggregation:
        case "token_mean":
            denominators = np.full(len(lengths), group_tokens.sum())
        case "sequence_mean":
            denominators = sequences * lengths
        case "constant":
            check_value("max_completion_length", max_length)
            denominators = np.full(len(lengths), sequences * max_length)
        case "group_token_mean":
            denominators = np.count_nonzero(group_tokens) * group_tokens[groups]
        case _:
            raise SettingError(
                f"loss_aggregation={aggregation!r} is unknown: use one of "
                f"{', '.join(get_args(Aggregation))}",
                "loss_aggregation",
            )
    weights = np.zeros(len(lengths), dtype=np.float64)
    np.divide(1.0, denominators, out=weights, where=lengths > 0)
    return weights
