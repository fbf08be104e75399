"""Every metric: its key in the result, its unit and its meaning.

Keys are the paths of RLlib's nested result dictionaries; TensorBoard shows them under
`ray/tune/`. `docs/metrics.md` is made from this file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ROLLOUT = "env_runners"
LEARNER = "learners/default_policy"
TIME = "time"
EVALUATION = "evaluation"
INITIAL_EVALUATION = "initial_evaluation"


RENAMED: Mapping[str, str] = {
    "response_length_mean": "completion_length_mean",
    "response_length_max": "completion_length_max",
    "reflections_per_answer": "reflections_per_completion",
    "groups_under_way": "groups_in_flight",
    "groups_reused": "groups_from_buffer",
    "groups_surplus": "groups_buffered",
}
"""What earlier versions called a metric, without its prefix, and what it is called now."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of an iteration's result.

    Attributes:
        key: its path in the result, parts joined by "/".
        unit: what it is counted in; "" for shares from 0 to 1.
        meaning: what it says, in one sentence.
    """

    key: str
    unit: str
    meaning: str


def _metrics(prefix: str, rows: Iterable[tuple[str, str, str]]) -> tuple[Metric, ...]:
    return tuple(Metric(f"{prefix}/{name}", unit, meaning) for name, unit, meaning in rows)


ROLLOUT_METRICS = _metrics(
    ROLLOUT,
    [
        ("accuracy", "", "The share of the sampled completions that are correct."),
        ("episode_return_mean", "reward",
         "The mean reward of the completions in the batch, all components included."),
        ("score_mean", "reward",
         "The mean reward that the environment gave the sampled completions, nothing added."),
        ("length_penalty_mean", "reward",
         "The mean penalty of Eq. 13 over the completions in the batch."),
        ("completion_length_mean", "tokens", "The mean length of the sampled completions."),
        ("completion_length_max", "tokens", "The length of the longest sampled completion."),
        ("truncated_share", "",
         "The share of the sampled completions that were cut at max_completion_length."),
        ("verdict_no_answer_share", "",
         "The share of the sampled completions in which no final answer was found."),
        ("verdict_timed_out_share", "",
         "The share of the sampled completions whose grading took too long."),
        ("verdict_refused_share", "",
         "The share of the sampled completions whose final answer is too long or too large to be"
         " graded."),
        ("reflection_share", "",
         "The share of the sampled completions that check, reflect or backtrack."),
        ("reflections_per_completion", "phrases",
         "The mean number of phrases of reflection in a sampled completion."),
        ("reward_failures_raised", "completions",
         "The number of completions without a value because a reward function raised."),
        ("reward_failures_timed_out", "completions",
         "The number of completions without a value because a reward function took too long."),
        ("reward_failures_bad_value", "completions",
         "The number of completions without a value because a reward function gave no usable "
         "number."),
        ("reward_failures_wrong_length", "completions",
         "The number of completions without a value because a reward function gave too many or "
         "too few values."),
        ("groups_kept", "groups", "The number of groups in the batch."),
        ("groups_sampled", "groups",
         "The number of groups sampled in this iteration, kept or dropped."),
        ("groups_all_correct_share", "",
         "The share of the scored groups whose completions are all correct."),
        ("groups_all_wrong_share", "",
         "The share of the scored groups whose completions are all wrong, for no reason of "
         "length or grading time."),
        ("groups_truncated_share", "",
         "The share of the scored groups that are all wrong because every completion was cut."),
        ("groups_ungraded_share", "",
         "The share of the scored groups that are all wrong while the grading of at least half "
         "of the completions took too long."),
        ("groups_failed", "groups",
         "The number of groups that could not be scored, or whose prompt is too long."),
        ("groups_asked", "groups", "The number of problems newly requested in this iteration."),
        ("groups_in_flight", "groups",
         "The number of groups that are in flight when the sampling for this batch ends."),
        ("groups_from_buffer", "groups",
         "The number of groups in the batch that earlier iterations had left in the buffer."),
        ("groups_buffered", "groups",
         "The number of groups with a signal that stay in the buffer for later batches."),
        ("groups_expired", "groups",
         "The number of buffered groups dropped because they were older than max_staleness."),
        ("keep_rate", "",
         "The running estimate of the share of the sampled groups that carry a signal."),
        ("num_env_steps_sampled", "completions",
         "The number of completions sampled in this iteration."),
        ("num_env_steps_sampled_lifetime", "completions",
         "The number of completions sampled since the beginning."),
        ("tokens_sampled", "tokens",
         "The number of completion tokens generated in this iteration."),
        ("tokens_per_s", "tokens/s",
         "The number of completion tokens generated per second of sampling."),
        ("engines_busy_share", "",
         "The share of the sampling time in which an engine computed, mean over the engines."),
        ("runners_lost", "runners",
         "The number of runners that died, hung or failed since the beginning."),
        ("sync_gap", "nats",
         "The mean absolute difference between the log-probabilities of engine and learner on a "
         "fixed text, at the last weight sync that was checked."),
        ("problem_stream_position", "problems",
         "The number of problems posed since the beginning."),
        ("skipped_batch", "0 or 1",
         "1 if the batch was not full and at_sampling_limit is skip, otherwise 0."),
    ],
)  # fmt: skip

COMPONENTS = "reward_components"
DATASETS = "dataset_accuracy"
_PER_DATASET = (
    f"{DATASETS}/<name>",
    "",
    "The share of the completions for one source of a mixture that are correct.",
)
_PER_COMPONENT = (
    f"{COMPONENTS}/<name>",
    "reward",
    "The mean of one component of the reward over the sampled completions, before its weight.",
)
NAMED_METRICS = tuple(
    metric
    for prefix in (ROLLOUT, EVALUATION, INITIAL_EVALUATION)
    for metric in _metrics(prefix, [_PER_COMPONENT, _PER_DATASET])
)
"""Metrics that exist once for each name that a configuration gives."""

LEARNER_METRICS = _metrics(
    LEARNER,
    [
        ("loss", "number", "Minus the objective of Eq. 12, mean over the optimizer steps."),
        ("entropy", "nats", "The mean entropy of the policy over the trained tokens."),
        ("token_prob_mean", "",
         "The mean probability of the trained tokens under the policy."),
        ("clip_share_low", "", "The share of the trained tokens clipped at 1 - clip_low."),
        ("clip_share_high", "", "The share of the trained tokens clipped at 1 + clip_high."),
        ("ratio_mean", "number", "The mean ratio of the new to the old probability of a token."),
        ("approx_kl", "nats",
         "The mean of log(old/new) over the trained tokens: how far the updates moved the "
         "policy."),
        ("reference_kl", "nats",
         "The estimated KL divergence from the untrained model; 0 unless kl_coeff is set."),
        ("grad_norm", "number",
         "The norm of the gradient before clipping, mean over the optimizer steps."),
        ("lr", "number", "The learning rate of this iteration."),
        ("engine_gap_mean", "nats",
         "The mean absolute difference between the log-probabilities of engine and learner under"
         " the same weights."),
        ("engine_gap_p99", "nats",
         "The difference that 99% of the tokens do not exceed, to within 5% of its value."),
        ("engine_gap_max", "nats",
         "The largest absolute difference between the log-probabilities of engine and learner "
         "under the same weights."),
        ("importance_truncated_share", "",
         "The share of the tokens whose importance weight was truncated to importance_cap."),
        ("importance_masked_share", "",
         "The share of the tokens left out of the loss by importance_mask_above."),
        ("masked_token_share", "", "The share of the completion tokens left out of the loss."),
        ("updates", "updates", "The number of optimizer steps in this iteration."),
        ("updates_skipped", "updates",
         "The number of optimizer steps skipped because the loss or the gradient was not finite."),
        ("updates_empty", "updates",
         "The number of optimizer steps not taken because no token of the minibatch was in the "
         "loss."),
        ("tokens_trained", "tokens",
         "The number of completion tokens in the loss, summed over the optimizer steps."),
        ("tokens_per_s", "tokens/s",
         "The number of tokens trained per second, prompts included."),
    ],
)  # fmt: skip

TIME_METRICS = _metrics(
    TIME,
    [
        ("sample_s", "s", "The time for sampling and scoring."),
        ("learn_s", "s", "The time for the optimizer steps."),
        ("sync_s", "s", "The time in which new weights got from the learner into the engines."),
        ("evaluate_s", "s", "The time for the evaluation after this iteration; 0 without one."),
    ],
)

_EVALUATION_ROWS = (
    ("accuracy", "",
     "The share of the completions for held-out problems that are correct (avg@k)"),
    ("pass_at_k", "", "The share of the held-out problems with a correct completion among k"),
    ("majority_at_k", "",
     "The share of the held-out problems whose most frequent answer is correct (cons@k); "
     "completions without an answer have no vote"),
    ("completion_length_mean", "tokens", "The mean length of the completions"),
    ("truncated_share", "",
     "The share of the completions that were cut at max_completion_length"),
    ("num_problems", "problems", "The number of held-out problems, failed ones included"),
    ("problems_failed", "problems",
     "The number of held-out problems that could not be posed, sampled or scored; they count as "
     "wrong"),
    ("problems_too_long", "problems",
     "The number of these whose prompt is longer than max_prompt_length"),
    ("reward_failures", "completions",
     "The number of completions for held-out problems without a value of a reward function"),
    ("k", "completions", "The number of completions for each problem"),
)  # fmt: skip

EVALUATION_METRICS = _metrics(
    EVALUATION,
    [
        *((n, u, m + ".") for n, u, m in _EVALUATION_ROWS),
        ("iteration", "iterations",
         "The iteration after which this evaluation was made; 0 before training. Every result "
         "carries the last evaluation, and NaN before the first one."),
    ],
)  # fmt: skip
INITIAL_EVALUATION_METRICS = _metrics(
    INITIAL_EVALUATION,
    [(n, u, m + ", before training.") for n, u, m in _EVALUATION_ROWS],
)

ALL_METRICS = (
    *ROLLOUT_METRICS,
    *LEARNER_METRICS,
    *TIME_METRICS,
    *EVALUATION_METRICS,
    *INITIAL_EVALUATION_METRICS,
)


def renamed(key: str) -> str | None:
    """The present key of a metric that was renamed: `env_runners/groups_in_flight`, or None.

    Args:
        key: as a user wrote it, with or without a prefix; parts joined by "/".
    """
    *prefix, name = key.split("/")
    return "/".join([*prefix, RENAMED[name]]) if name in RENAMED else None


def as_markdown() -> str:
    """Return the table of docs/metrics.md as Markdown."""
    lines = ["| key | unit | meaning |", "| --- | --- | --- |"]
    for metric in (*ALL_METRICS, *NAMED_METRICS):
        meaning = metric.meaning.replace("|", "\\|")  # a bare one would end the cell
        lines.append(f"| `{metric.key}` | {metric.unit or 'share'} | {meaning} |")
    return "\n".join(lines) + "\n"
