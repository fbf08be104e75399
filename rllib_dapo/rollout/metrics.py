"""Computes the metrics of an iteration's rollouts and of an evaluation.

`rllib_dapo.metrics` describes the keys.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

import numpy as np
import numpy.typing as npt

from rllib_dapo.data.prompts import PromptTooLong
from rllib_dapo.metrics import COMPONENTS, DATASETS
from rllib_dapo.rewards.calls import FailureReason
from rllib_dapo.rewards.composition import component_names
from rllib_dapo.rollout.majority import majority_is_correct
from rllib_dapo.rollout.rollouts import RolloutBatch
from rllib_dapo.rollout.token_batch import RewardShaping, length_penalties
from rllib_dapo.settings.run import RunSettings
from rllib_dapo.types import Completion, Group, ProblemRef

logger = logging.getLogger(__name__)


def completion_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """Return the metrics of any set of completions."""
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
    for name, correct in _sources(completions):
        verdicts.setdefault(name, []).append(correct)
    return {f"{DATASETS}/{name}": _mean(correct) for name, correct in verdicts.items()}


def _sources(completions: Sequence[Completion]) -> list[tuple[str, bool]]:
    """The source of each completion that names one, and whether it is correct."""
    named = [c for c in completions if c.info.get("dataset") is not None]
    return [(str(c.info["dataset"]), c.correct) for c in named]


def verdict_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """Shares of verdicts by how they came about; 0 where `info` has no `matched_by`."""
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
        groups: all sampled groups, failed ones included.
        completions: the completions that were scored.
        components: the names to report, also where no completion has them.
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
    """Numbers of what was sampled for one batch, and of what is in it.

    Args:
        sampled: the groups sampled in this iteration, kept or dropped.
        batch: the groups to be trained on.
        counts: sampled groups by verdict (`DynamicSampler.counts`).
        shaping: the shaping that `make_token_batch` is given.
        components: names of the reward's components (`composition.component_names`).
    """
    completions = [c for group in sampled if group.failure is None for c in group.completions]
    penalties = [penalty for g in batch for penalty in length_penalties(g, shaping)]
    rewards = [reward for g in batch for reward in g.rewards]
    reflections = [c.reflections for c in completions]
    scored = max(1, sum(n for verdict, n in counts.items() if verdict != "failed"))
    return {
        **completion_metrics(completions),
        **verdict_metrics(completions),
        **dataset_metrics(completions),
        **reward_metrics(sampled, completions, components),
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


def rollout_metrics(batch: RolloutBatch, settings: RunSettings) -> dict[str, float]:
    """Return all metrics of the sampling for one iteration's batch."""
    values = batch_metrics(
        batch.sampled,
        batch.groups,
        batch.counts,
        RewardShaping.from_settings(settings),
        component_names(settings),
    )
    progress = batch.progress
    return values | {
        "groups_asked": float(progress.asked),
        "groups_in_flight": float(progress.in_flight),
        # Groups of the buffer are used first, but a batch has room for its size only.
        "groups_from_buffer": float(min(progress.carried, len(batch.groups))),
        "groups_buffered": float(batch.surplus),
        "groups_expired": float(batch.expired),
        "keep_rate": batch.keep_rate,
        "tokens_per_s": values["tokens_sampled"] / max(batch.seconds, 1e-9),
        "engines_busy_share": batch.busy_share,
        "skipped_batch": float(not batch.groups),
    }


def warn_of_failed(groups: Sequence[Group]) -> None:
    """Log how many evaluation problems failed, and the first reason."""
    if failed := [group for group in groups if group.failure is not None]:
        logger.warning(
            "%d of %d evaluation problems failed and count as wrong, for instance problem %d: %s",
            len(failed), len(groups), failed[0].ref.index, failed[0].failure,
        )  # fmt: skip


def evaluation_metrics(
    groups: Sequence[Group],
    *,
    components: Sequence[str] = (),
    source_name: Callable[[ProblemRef], str | None] = lambda ref: None,
) -> dict[str, float]:
    """avg@k, pass@k and cons@k over k completions of each problem.

    A problem that could not be posed, sampled or scored counts as k wrong completions.

    Args:
        groups: one for each problem, failed ones included.
        components: names of the reward's components (`composition.component_names`).
        source_name: says which source of a mixture a problem is from.
    """
    failed = [g for g in groups if g.failure is not None or not g.completions]
    scored = [g for g in groups if g.failure is None]
    completions = [c for g in scored for c in g.completions]
    numbers = completion_metrics(completions)
    k = max((len(g.completions) for g in scored), default=0)
    wrong = [False] * k * len(failed)
    rewards = reward_metrics(groups, completions, components)
    return {
        "accuracy": _mean([c.correct for c in completions] + wrong),
        "pass_at_k": _mean([any(c.correct for c in g.completions) for g in groups]),
        "majority_at_k": _mean([majority_is_correct(g) for g in groups]),
        "completion_length_mean": numbers["completion_length_mean"],
        "truncated_share": numbers["truncated_share"],
        "num_problems": float(len(groups)),
        "problems_failed": float(len(failed)),
        "problems_too_long": float(sum(is_too_long(g) for g in failed)),
        "k": float(k),
        "reward_failures": sum(v for n, v in rewards.items() if n.startswith("reward_failures_")),
        **{name: value for name, value in rewards.items() if name.startswith(f"{COMPONENTS}/")},
        **_accuracy_of_sources(completions, failed, k, source_name),
    }


def is_too_long(group: Group) -> bool:
    """Whether a problem failed because its prompt is longer than `max_prompt_length`."""
    return (group.failure or "").startswith(PromptTooLong.__name__)


def _accuracy_of_sources(
    completions: Sequence[Completion],
    failed: Sequence[Group],
    k: int,
    source_name: Callable[[ProblemRef], str | None],
) -> dict[str, float]:
    """`dataset_metrics` in which each failed problem counts as k wrong completions."""
    correct: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for name, right in _sources(completions):
        counts[name] += 1
        correct[name] += right
    for group in failed:
        if (source := source_name(group.ref)) is not None:
            counts[source] += k
    return {f"{DATASETS}/{name}": correct[name] / max(n, 1) for name, n in counts.items()}


def _mean(values: npt.ArrayLike) -> float:
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()) if array.size else 0.0
