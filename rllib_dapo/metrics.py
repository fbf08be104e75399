"""Every metric: its key in the result, its unit and its meaning.

Keys are the paths of RLlib's nested result dictionaries; TensorBoard shows them under
`ray/tune/`. `docs/metrics.md` is made from this file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ROLLOUT = "env_runners"
LEARNER = "learners/default_policy"
TIME = "time"
EVALUATION = "evaluation"
INITIAL_EVALUATION = "initial_evaluation"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of an iteration's result.

    Attributes:
        key: path in the result, parts joined by "/".
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
        ("accuracy", "", "share of all answers sampled in this iteration that are right"),
        ("episode_return_mean", "reward", "mean reward of the trained answers, shaping included"),
        ("score_mean", "reward", "mean reward of all sampled answers, before shaping"),
        ("length_penalty_mean", "reward", "mean of Eq. 13 over the trained answers"),
        ("completion_length_mean", "tokens", "mean length of all sampled answers"),
        ("completion_length_max", "tokens", "longest sampled answer"),
        ("truncated_share", "", "share of sampled answers cut at max_completion_length"),
        ("verdict_no_answer_share", "", "share of sampled answers in which no answer was found"),
        ("verdict_timed_out_share", "", "share of sampled answers whose grading took too long"),
        ("verdict_refused_share", "", "share of sampled answers refused as too long or too large"),
        ("reflection_share", "", "share of sampled answers that check, reflect or backtrack"),
        (
            "reflections_per_completion",
            "phrases",
            "phrases of reflection in a sampled answer, mean",
        ),
        ("reward_failures_raised", "answers", "without a value: a reward function raised"),
        ("reward_failures_timed_out", "answers", "without a value: one took too long"),
        ("reward_failures_bad_value", "answers", "without a value: one gave no usable number"),
        ("reward_failures_wrong_length", "answers", "without a value: one gave too many or few"),
        ("groups_kept", "groups", "groups in the training batch"),
        ("groups_sampled", "groups", "groups sampled in this iteration, kept or dropped"),
        ("groups_all_correct_share", "", "share of sampled groups whose answers are all right"),
        (
            "groups_all_wrong_share",
            "",
            "share of sampled groups all wrong, neither cut nor ungraded",
        ),
        (
            "groups_truncated_share",
            "",
            "share of sampled groups all wrong because all answers are cut",
        ),
        ("groups_ungraded_share", "", "share of sampled groups all wrong, half or more timed out"),
        ("groups_failed", "groups", "groups that could not be scored, or whose prompt is too long"),
        ("groups_asked", "groups", "problems newly asked for in this iteration"),
        ("groups_in_flight", "groups", "asked for and still being answered after the sampling"),
        ("groups_from_buffer", "groups", "groups in the batch that earlier iterations left over"),
        ("groups_buffered", "groups", "groups with a signal that are left over for later batches"),
        ("groups_expired", "groups", "left-over groups dropped for being older than max_staleness"),
        ("keep_rate", "", "share of sampled groups that carry a signal, running estimate"),
        ("num_env_steps_sampled", "answers", "answers sampled in this iteration"),
        ("num_env_steps_sampled_lifetime", "answers", "answers sampled since the beginning"),
        ("tokens_sampled", "tokens", "answer tokens generated in this iteration"),
        ("tokens_per_s", "tokens/s", "answer tokens generated per second of sampling"),
        ("engines_busy_share", "", "share of the sampling time that the engines computed, mean"),
        ("runners_lost", "runners", "runners that died, hung or failed since the beginning"),
        ("sync_gap", "nats", "mean |engine - learner| on a fixed text, at the last sync checked"),
        ("problem_stream_position", "problems", "problems posed since the beginning"),
        ("skipped_batch", "0 or 1", "1 if the batch was not full and at_sampling_limit is skip"),
    ],
)

COMPONENTS = "reward_components"
DATASETS = "dataset_accuracy"
_PER_DATASET = (f"{DATASETS}/<name>", "", "share of right answers to one source of a mixture")
NAMED_METRICS = (
    *_metrics(
        ROLLOUT,
        [
            (
                f"{COMPONENTS}/<name>",
                "reward",
                "mean of a component over all sampled answers, no weight",
            ),
            _PER_DATASET,
        ],
    ),
    *_metrics(EVALUATION, [_PER_DATASET]),
    *_metrics(INITIAL_EVALUATION, [_PER_DATASET]),
)
"""Metrics that are there once for each name that a configuration gives."""

LEARNER_METRICS = _metrics(
    LEARNER,
    [
        ("loss", "number", "minus the objective of Eq. 12, mean over the updates"),
        ("entropy", "nats", "mean entropy of the policy over the trained tokens"),
        ("token_prob_mean", "", "mean probability of the trained tokens under the policy"),
        ("clip_share_low", "", "share of tokens clipped at 1 - clip_low"),
        ("clip_share_high", "", "share of tokens clipped at 1 + clip_high"),
        ("ratio_mean", "number", "mean of the ratio of new to old probability"),
        ("approx_kl", "nats", "mean of log(old/new): how far the updates moved the policy"),
        ("reference_kl", "nats", "estimated KL to the untrained model; 0 unless kl_coeff is set"),
        ("grad_norm", "number", "norm of the gradient before clipping, mean over the updates"),
        ("lr", "number", "learning rate of this iteration"),
        ("engine_gap_mean", "nats", "mean |engine - learner| log-probability, same weights"),
        ("engine_gap_p99", "nats", "99% of tokens differ by less (to 5%), same weights"),
        ("engine_gap_max", "nats", "largest |engine - learner| log-probability, same weights"),
        ("importance_truncated_share", "", "share of tokens whose importance weight was capped"),
        ("importance_masked_share", "", "share of tokens left out for an extreme ratio"),
        ("masked_token_share", "", "share of completion tokens left out of the loss"),
        ("updates", "updates", "optimizer steps of this iteration"),
        ("updates_skipped", "updates", "steps skipped for a gradient that is not finite"),
        ("tokens_trained", "tokens", "completion tokens in the loss, summed over the updates"),
        ("tokens_per_s", "tokens/s", "tokens, prompts included, trained per second"),
    ],
)

TIME_METRICS = _metrics(
    TIME,
    [
        ("sample_s", "s", "sampling and scoring"),
        ("learn_s", "s", "optimizer steps"),
        ("sync_s", "s", "new weights from the learner into the engines"),
        ("evaluate_s", "s", "evaluation, when there was one"),
    ],
)

_EVALUATION_ROWS = (
    ("accuracy", "", "avg@k: share of right answers on held-out problems"),
    ("pass_at_k", "", "share of held-out problems with a right answer among k"),
    ("majority_at_k", "", "share of held-out problems whose most frequent answer is right"),
    ("completion_length_mean", "tokens", "mean length of the answers"),
    ("truncated_share", "", "share of answers cut at max_completion_length"),
    ("num_problems", "problems", "held-out problems"),
    ("k", "answers", "answers per problem"),
)

EVALUATION_METRICS = _metrics(EVALUATION, _EVALUATION_ROWS)
INITIAL_EVALUATION_METRICS = _metrics(
    INITIAL_EVALUATION,
    [(n, u, m + ", before training; first iteration only") for n, u, m in _EVALUATION_ROWS],
)

ALL_METRICS = (
    *ROLLOUT_METRICS,
    *LEARNER_METRICS,
    *TIME_METRICS,
    *EVALUATION_METRICS,
    *INITIAL_EVALUATION_METRICS,
)


def as_markdown() -> str:
    """The table of docs/metrics.md."""
    lines = ["| key | unit | meaning |", "| --- | --- | --- |"]
    for metric in (*ALL_METRICS, *NAMED_METRICS):
        meaning = metric.meaning.replace("|", "\\|")  # a bare one would end the cell
        lines.append(f"| `{metric.key}` | {metric.unit or 'share'} | {meaning} |")
    return "\n".join(lines) + "\n"
