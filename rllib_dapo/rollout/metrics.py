"""The numbers of one iteration's rollouts and of an evaluation; keys: see `metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np
import numpy.typing as npt

from rllib_dapo.metrics import COMPONENTS, DATASETS
from rllib_dapo.rewards.calls import FailureReason
from rllib_dapo.rollout.batch_progress import Progress
from rllib_dapo.rollout.token_batch import RewardShaping, length_penalties
from rllib_dapo.types import Completion, Group


def answer_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """What can be said of any set of answers."""
    lengths = np.array([len(c.token_ids) for c in completions], dtype=np.float64)
    return {
        "accuracy": _mean([c.correct for c in completions]),
        "score_mean": _mean([c.score for c in completions]),
        "completion_length_mean": _mean(lengths),
        "completion_length_max": float(lengths.max(initial=0)),
        "truncated_share": _mean([c.truncated for c in completions]),
        "tokens_sampled": float(lengths.sum()),
        "num_env_steps_sampled": float(len(completions)),
    }


def dataset_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """Accuracy by source, where the environment's `info` names one (mixtures)."""
    verdicts: dict[str, list[bool]] = {}
    for completion in completions:
        if "dataset" in completion.info:
            verdicts.setdefault(str(completion.info["dataset"]), []).append(completion.correct)
    return {f"{DATASETS}/{name}": _mean(correct) for name, correct in verdicts.items()}


def verdict_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """How verdicts came about; 0 where the environment's `info` has no `matched_by`."""
    ways = [c.info.get("matched_by") for c in completions]
    return {
        f"verdict_{way}_share": _mean([found == way for found in ways])
        for way in ("no_answer", "timed_out", "refused")
    }


def reward_metrics(
    groups: Sequence[Group], completions: Sequence[Completion], components: Sequence[str]
) -> dict[str, float]:
    """The components of the reward, and how often a function gave none.

    Args:
        groups: all sampled ones, the failed too.
        completions: the answers that were scored.
        components: the names to report, also where no answer has them.
    """
    failures: Counter[str] = Counter()
    for group in groups:
        failures.update(group.reward_failures)
    means = {
        f"{COMPONENTS}/{name}": _mean(
            [c.components[name] for c in completions if name in c.components]
        )
        for name in components
    }
    return means | {
        f"reward_failures_{reason}": float(failures[reason]) for reason in get_args(FailureReason)
    }


def batch_metrics(
    sampled: Sequence[Group],
    batch: Sequence[Group],
    counts: Mapping[str, int],
    shaping: RewardShaping,
    components: Sequence[str] = (),
) -> dict[str, float]:
    """What was sampled for one batch, and what is in it.

    Args:
        sampled: the groups sampled in this iteration, kept or dropped.
        batch: the groups to be trained on.
        counts: sampled groups by verdict (`DynamicSampler.counts`).
        shaping: as in `make_token_batch`.
        components: the reward's, by name (`reward_functions.composition.component_names`).
    """
    answers = [c for group in sampled if group.failure is None for c in group.completions]
    penalties = [penalty for g in batch for penalty in length_penalties(g, shaping)]
    rewards = [reward for g in batch for reward in g.rewards]
    reflections = [c.reflections for c in answers]
    scored = max(1, sum(n for verdict, n in counts.items() if verdict != "failed"))
    return {
        **answer_metrics(answers),
        **verdict_metrics(answers),
        **dataset_metrics(answers),
        **reward_metrics(sampled, answers, components),
        "reflection_share": _mean([count > 0 for count in reflections]),
        "reflections_per_completion": _mean(reflections),
        "episode_return_mean": _mean(np.add(rewards, penalties)),
        "length_penalty_mean": _mean(penalties),
        "groups_kept": float(len(batch)),
        "groups_sampled": float(len(sampled)),
        "groups_all_correct_share": counts.get("all_correct", 0) / scored,
        "groups_all_wrong_share": counts.get("all_wrong", 0) / scored,
        "groups_truncated_share": counts.get("truncated", 0) / scored,
        "groups_ungraded_share": counts.get("ungraded", 0) / scored,
        "groups_failed": float(counts.get("failed", 0)),
    }


def demand_metrics(
    progress: Progress,
    batch: Sequence[Group],
    *,
    surplus: int,
    expired: int,
    keep_rate: float,
) -> dict[str, float]:
    """What was asked for, and what comes from other batches or goes into them.

    Args:
        progress: of the batch, when its sampling is over.
        batch: the groups to be trained on.
        surplus: kept groups that are not in it (`DynamicSampler.surplus`).
        expired: left-over groups that were too old for it (`Leftovers.expired`).
        keep_rate: the estimate of the share of groups kept, this batch included.
    """
    return {
        "groups_asked": float(progress.asked),
        "groups_in_flight": float(progress.in_flight),
        "groups_from_buffer": float(min(progress.carried, len(batch))),  # they are used first
        "groups_buffered": float(surplus),
        "groups_expired": float(expired),
        "keep_rate": keep_rate,
    }


def evaluation_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """avg@k, pass@k and majority@k over k answers to each problem."""
    scored = [g for g in groups if g.failure is None and g.completions]
    completions = [c for g in scored for c in g.completions]
    answers = answer_metrics(completions)
    return {
        "accuracy": answers["accuracy"],
        "pass_at_k": _mean([any(c.correct for c in g.completions) for g in scored]),
        "majority_at_k": _mean([_majority_is_correct(g) for g in scored]),
        "completion_length_mean": answers["completion_length_mean"],
        "truncated_share": answers["truncated_share"],
        "num_problems": float(len(scored)),
        "k": float(max((len(g.completions) for g in scored), default=0)),
        **dataset_metrics(completions),
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
