"""The numbers of one iteration's rollouts and of an evaluation; keys: see `metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rllib_dapo.sampling.token_batch import RewardShaping, length_penalties
from rllib_dapo.types import Completion, Group


def answer_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """What can be said of any set of answers."""
    lengths = np.array([len(c.token_ids) for c in completions], dtype=np.float64)
    return {
        "accuracy": _mean([c.correct for c in completions]),
        "score_mean": _mean([c.score for c in completions]),
        "response_length_mean": _mean(lengths),
        "response_length_max": float(lengths.max(initial=0)),
        "truncated_share": _mean([c.truncated for c in completions]),
        "tokens_sampled": float(lengths.sum()),
        "num_env_steps_sampled": float(len(completions)),
    }


def batch_metrics(
    sampled: Sequence[Group],
    batch: Sequence[Group],
    counts: Mapping[str, int],
    shaping: RewardShaping,
) -> dict[str, float]:
    """What sampling one batch took, and what is in it.

    Args:
        sampled: the groups sampled in this iteration, kept or dropped.
        batch: the groups to be trained on.
        counts: sampled groups by verdict (`DynamicSampler.counts`).
        shaping: as in `make_token_batch`.
    """
    answers = [c for group in sampled if group.failure is None for c in group.completions]
    penalties = [penalty for g in batch for penalty in length_penalties(g, shaping)]
    scores = [score for g in batch for score in g.scores]
    scored = max(1, sum(n for verdict, n in counts.items() if verdict != "failed"))
    return {
        **answer_metrics(answers),
        "episode_return_mean": _mean(np.add(scores, penalties)),
        "length_penalty_mean": _mean(penalties),
        "groups_kept": float(len(batch)),
        "groups_sampled": float(len(sampled)),
        "groups_all_correct_share": counts.get("all_correct", 0) / scored,
        "groups_all_wrong_share": counts.get("all_wrong", 0) / scored,
        "groups_failed": float(counts.get("failed", 0)),
    }


def evaluation_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """avg@k, pass@k and majority@k over k answers to each problem."""
    scored = [g for g in groups if g.failure is None and g.completions]
    answers = answer_metrics([c for g in scored for c in g.completions])
    return {
        "accuracy": answers["accuracy"],
        "pass_at_k": _mean([any(c.correct for c in g.completions) for g in scored]),
        "majority_at_k": _mean([_majority_is_correct(g) for g in scored]),
        "response_length_mean": answers["response_length_mean"],
        "truncated_share": answers["truncated_share"],
        "num_problems": float(len(scored)),
        "k": float(max((len(g.completions) for g in scored), default=0)),
    }


def _majority_is_correct(group: Group) -> bool:
    """Whether the answer given most often is right; the earlier one wins a tie.

    Right answers count as one, however they are written; wrong ones are told apart by what
    the environment extracted.
    """
    votes = Counter(
        True if c.correct else str(c.info.get("extracted", c.text)) for c in group.completions
    )
    return votes.most_common(1)[0][0] is True


def _mean(values: npt.ArrayLike) -> float:
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()) if array.size else 0.0
