"""Every setting of DAPO, where it is defined: meaning, unit, default, the paper's value.

RLlib's own settings keep their names and are used where they fit: `lr`, `grad_clip`,
`num_epochs`, `minibatch_size` (here: responses per optimizer step; paper: 512), `seed`,
`num_env_runners`, `num_learners`, `evaluation_interval`, `evaluation_duration` (problems).

Defaults of the objective are the paper's. Defaults of sizes fit the embedded model on a
machine with two cores; `tuned_examples/dapo_qwen2.5_32b_aime.yaml` has the paper's sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_type_hints

from rllib_dapo.choices import (
    Aggregation,
    AtLimit,
    Baseline,
    ChatMode,
    ComputeDtype,
    ImportanceSampling,
    KLEstimator,
    LearningRateSchedule,
    OldLogprobs,
    ProgressMode,
    RatioLevel,
    RewardFailure,
    UnfinishedGroups,
)


class DAPOSettings:
    """The settings that DAPO adds to RLlib's `AlgorithmConfig`."""

    # -- The model ----------------------------------------------------------------------

    language_model: str = "embedded"
    """The causal language model to train: `embedded` (ships with the package, needs no
    network), a Hugging Face folder, or a hub id. Written `model` in YAML and in
    `training(model=…)`: RLlib has another use for the attribute. Paper: Qwen2.5-32B."""

    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off: such models are refused."""

    max_prompt_length: int = 64
    """Tokens; a longer prompt is left out and counted, never cut. Paper's recipe: 2048."""

    max_response_length: int = 64
    """Tokens, L_max of Eq. 13: sampling stops here, and an answer without its EOS by then
    is truncated. Paper: 20480 (16384 expected plus 4096 of soft punishment)."""

    # -- The prompt ---------------------------------------------------------------------

    prompt_template: str = "plain"
    """How a problem becomes the user's text: the name of a template (`plain`, `dapo`,
    `boxed`) or a text of your own with `{problem}` in it."""

    system_prompt: str | None = None
    """A system message before the problem; chat models only."""

    few_shot: Sequence[dict[str, str]] = ()
    """Worked examples before the problem: dictionaries with `problem` and `answer`."""

    chat: ChatMode = "auto"
    """Whether prompts go through the tokenizer's chat template: `auto` does if it has one."""

    # -- Sampling -----------------------------------------------------------------------

    group_size: int = 16
    """G, answers per problem; at least 2. Paper: 16."""

    groups_per_batch: int = 32
    """Problems per iteration that carry a signal. Paper: 512."""

    temperature: float = 1.0
    """Sampling temperature in training; the learner's probabilities use the same one.
    Paper: 1.0."""

    top_p: float = 1.0
    """Nucleus sampling in training. Anything below 1 is refused: the sampled distribution
    would no longer be the one whose probabilities the loss compares. Paper: 1.0."""

    dynamic_sampling: bool = True
    """Drop groups whose answers are all right or all wrong, and ask for new problems until
    the batch is full (Section 3.2). Off: every group is kept."""

    max_sampling_rounds: int = 30
    """A batch asks for at most so many times `groups_per_batch` problems before
    `at_sampling_limit` applies; at least 1. Paper: not stated (its published recipe allows 10
    rounds of three times the batch)."""

    at_sampling_limit: AtLimit = "error"
    """What to do with a batch that is still not full then: `error` stops with the counts
    by reason, `train_on_partial` trains on the groups there are, `skip` trains on nothing
    in this iteration and goes on."""

    unfinished_groups: UnfinishedGroups = "finish"
    """What happens to problems still being answered when the batch is full. `finish`: they
    are waited for and kept for the next batch. `abort`: their answers are thrown away and the
    same problems asked first next time. `continue`: they go on with the new weights, each
    token with the log-probability of the weights that sampled it (partial rollouts), and a
    batch takes the first groups to finish; for answers of very uneven length. Only with
    `finish`, or one runner, does the same seed give the same run. Paper: not stated."""

    max_group_age: int = 1
    """Groups beyond a full batch are kept for later ones, and come first there, until their
    oldest token was sampled by weights that are so many policy versions old; then they are
    dropped and counted. Their own old log-probabilities account for the difference. 0: no
    group is used after the weights have changed, and no more is asked for than should fill
    the batch. Paper: not stated."""

    rollout_lead: Literal[0, 1] = 0
    """0: sample, then train. 1: sample the next batch while the learner trains on this one;
    what is trained on is then one policy version old (one-step-off). Goes with
    `old_logprobs: learner` and `importance_sampling: token`; needs `num_env_runners` of 1 or
    more. Paper: 0."""

    runner_timeout_s: float = 300.0
    """A runner whose engine makes no step for so many seconds while it has work, or that does
    not answer at all, is killed; its problems are asked again elsewhere. Longer than one step
    of your model ever takes, its first one included."""

    runner_restart_timeout_s: float = 600.0
    """How long to wait for a runner to come back when none is left. RLlib's
    `restart_failed_env_runners` and `max_num_env_runner_restarts` say whether one does."""

    max_problem_attempts: int = 5
    """A problem during whose answering so many runners have failed is given up as a failed
    group."""

    # -- Rewards ------------------------------------------------------------------------

    soft_overlong_punishment: bool = True
    """Add Eq. 13 to the reward: a penalty that grows as an answer nears the limit."""

    soft_overlong_cache: int = 16
    """Tokens, L_cache of Eq. 13: the penalty grows from 0 to -1 over the last so many
    tokens before `max_response_length`. Paper: 4096."""

    overlong_filtering: bool = False
    """Take truncated answers out of the loss, numerator and denominator alike (Section
    3.4). They still count in their group's mean and standard deviation. Paper: used alone
    as an ablation; its final recipe uses the soft punishment instead."""

    format_reward: float = 0.0
    """Weight of a component that is 1 for an answer that ended by itself and in which the
    environment found a final answer, else 0. Paper: none."""

    reward_functions: Sequence[dict[str, Any]] = ()
    """Functions of your own to add to the reward: dictionaries with `function` (an import
    path, `package.module:name`), `weight` (1 unless given; 0 only logs) and `name`. See
    docs/rewards.md."""

    reward_failure: RewardFailure = "drop_group"
    """When a reward function raises, takes too long or gives no number: `error` stops,
    `drop_group` drops the group and counts, `zero` puts 0 for the missing value and counts."""

    reward_timeout_s: float = 60.0
    """Seconds that one reward function may take for the answers to one problem."""

    # -- The objective ------------------------------------------------------------------

    clip_low: float = 0.2
    """ε_low: the ratio is clipped below at 1 - ε_low. Paper: 0.2."""

    clip_high: float = 0.28
    """ε_high: the ratio is clipped above at 1 + ε_high (clip-higher). Paper: 0.28; 0.2
    makes the clip symmetric, as in GRPO."""

    dual_clip: float | None = None
    """For negative advantages the objective is bounded below by this multiple of the
    advantage; None: no such bound. The published recipe uses 10."""

    ratio_level: RatioLevel = "token"
    """`token`: every token has its own ratio (Eq. 9). `sequence`: the geometric mean of the
    ratios of a whole answer (GSPO, arXiv 2507.18071, which uses it with `sequence_mean` and
    a far narrower clip: 3e-4 below, 4e-4 above)."""

    loss_aggregation: Aggregation = "token_mean"
    """`token_mean`: each response token of the global minibatch weighs the same (Eq. 12 over
    the whole minibatch, as the paper's recipe computes it). `sequence_mean`: mean over the
    responses of their token means (GRPO). `constant`: sum over tokens, divided by responses
    times `max_response_length` (Dr. GRPO). `group_token_mean`: mean over the groups of their
    token means, Eq. 12 to the letter."""

    normalize_advantage_std: bool = True
    """Divide a group's advantages by their standard deviation (Eq. 9). Off: Dr. GRPO."""

    advantage_baseline: Baseline = "group_mean"
    """What an answer's reward is compared with: the mean of its group (`group_mean`, Eq. 9),
    or of the other answers only (`leave_one_out`)."""

    entropy_coeff: float = 0.0
    """Weight of an entropy bonus in the objective. Paper: none."""

    kl_coeff: float = 0.0
    """Weight of a penalty for leaving the untrained `model`, which is then kept beside the
    trained one (with `lora_rank` it is there anyway). 0: neither. Paper: 0."""

    kl_estimator: KLEstimator = "k3"
    """How the penalty estimates the KL divergence from the sampled tokens: `k3` is GRPO's;
    `k2` has the exact gradient on the sampling policy; `k1` has no gradient on average and is
    there for comparison."""

    # -- The policy that sampled ----------------------------------------------------------

    old_logprobs: OldLogprobs = "engine"
    """Whose log-probabilities are the old ones of the ratio. `engine`: those it sampled with.
    `learner`: computed anew by the learner before the first update, one more forward pass,
    for engines whose arithmetic differs (bfloat16, quantization). Paper's recipe: learner."""

    importance_sampling: ImportanceSampling = "none"
    """With `old_logprobs: learner`: weigh each token by the ratio of the learner's to the
    engine's probability, which corrects for sampling with other arithmetic or older weights.
    `token`: its own; `sequence`: the product over its answer. Paper: none."""

    importance_cap: float = 2.0
    """That weight is truncated here; at least 1."""

    importance_mask_above: float | None = None
    """With `old_logprobs: learner`: tokens whose ratio is above this, or below its inverse,
    leave the loss, numerator and denominator alike. Above 1; None: none do."""

    # -- The optimizer ------------------------------------------------------------------

    warmup_iterations: int = 20
    """Iterations (rollout steps) of linear warm-up of `lr`; 0: none. Paper: 20."""

    lr_schedule: LearningRateSchedule = "constant"
    """After the warm-up: `constant`, or `cosine`, falling to `lr_end_factor` times `lr` at
    iteration `lr_decay_iterations`. Paper: constant."""

    lr_decay_iterations: int | None = None
    """The iteration at which `lr_schedule: cosine` has fallen all the way."""

    lr_end_factor: float = 0.0
    """What `lr_schedule: cosine` falls to, as a share of `lr`; from 0 to 1."""

    weight_decay: float = 0.1
    """AdamW's decoupled weight decay. Paper's recipe: 0.1."""

    adam_beta2: float = 0.999
    """AdamW's second-moment decay; its first is 0.9. Paper: not stated."""

    max_skipped_updates: int = 5
    """An update whose loss or gradient is not finite is skipped and counted; after this
    many in a row training stops with an error, and the last batch is saved."""

    # -- The learner's memory and speed -----------------------------------------------------

    max_tokens_per_microbatch: int = 16384
    """Tokens that go through the model at once; bounds the learner's memory and changes
    nothing in the gradient."""

    packing: bool = True
    """Lay a micro-batch out as one row without padding. Off: padded rows, sorted by length,
    for models whose attention cannot be told where sequences end."""

    share_prompts: bool = True
    """With `packing`: compute a prompt once for all its answers in a micro-batch."""

    gradient_checkpointing: bool = False
    """Compute a layer's activations again in the backward pass instead of keeping them."""

    compute_dtype: ComputeDtype = "float32"
    """Number format of the learner's forward and backward pass; weights, gradients' sums and
    optimizer stay float32. `bfloat16` for GPUs. Paper's recipe: bfloat16."""

    shard_model: bool = False
    """Shard weights, gradients and optimizer state over the learners (FSDP2) instead of
    having them whole in each; for models that do not fit one. Needs `num_learners` of 2 or
    more. Paper's recipe: sharded."""

    lora_rank: int | None = None
    """Train low-rank adapters of this rank (LoRA, arXiv 2106.09685) instead of all weights;
    the engines get the sum. None: all weights. Paper: none."""

    lora_alpha: float = 32.0
    """Adapters count `lora_alpha / lora_rank` times."""

    lora_target_modules: str | Sequence[str] = "all-linear"
    """Which layers have adapters: `all-linear` (all but the output head) or a list of module
    names such as `[q_proj, v_proj]`."""

    # -- The engine ---------------------------------------------------------------------

    dtype: str = "float32"
    """Number format of the inference engine. `float32` agrees with the learner to 1e-5
    and is the faster one on CPUs without bfloat16 units. GPUs: `bfloat16`."""

    engine_cpu_threads: int | None = None
    """CPU threads of one engine. None: as many as the process has anyway; Ray gives an actor
    (a trial, a remote runner) as many as its CPUs, usually 1, and a plain Python process gets
    all cores. Models below a few million parameters gain nothing from more than 1."""

    learner_cpu_threads: int | None = None
    """CPU threads of the learner. None: as many as the process has anyway, see
    `engine_cpu_threads`."""

    kv_cache_gib: float = 1.0
    """GiB of memory for the engine's key-value cache on CPUs. GPUs: see `engine_kwargs`,
    `gpu_memory_utilization`."""

    engine_kwargs: dict[str, Any] = {}  # noqa: RUF012 - copied into every config
    """More arguments of `vllm.LLM`, for instance `{"gpu_memory_utilization": 0.5}`."""

    max_engine_gap: float | None = None
    """Alarm: stop when the mean absolute difference between the engine's and the learner's
    log-probabilities (nats, before the first update of an iteration) exceeds this. None:
    report only."""

    # -- Evaluation and display -----------------------------------------------------------

    evaluation_samples: int = 4
    """Answers per held-out problem, k of avg@k and pass@k. Paper: 32."""

    evaluation_temperature: float = 1.0
    """Sampling temperature in evaluation; 0 is greedy. Paper: 1.0."""

    evaluation_top_p: float = 1.0
    """Nucleus sampling in evaluation. Paper: 0.7."""

    evaluate_before_training: bool = True
    """Evaluate the untrained model first (when `evaluation_interval` is set), so that the
    curve has a beginning; reported with the first iteration as `initial_evaluation`."""

    progress: ProgressMode = "auto"
    """Show progress while an iteration samples: `auto` does so in a terminal and under
    `rllib train`; `on` always draws a bar; `off` never."""

    wait_for_resources: bool = False
    """Start although the cluster lacks the CPUs or GPUs asked for now (clusters that grow
    by themselves). Off: that is refused, since such a run would wait for ever."""


def setting_names() -> tuple[str, ...]:
    """The names of all settings of `DAPOSettings`, in the order of their definition."""
    return tuple(DAPOSettings.__annotations__)


def setting_types() -> dict[str, Any]:
    """The annotated type of each setting."""
    return get_type_hints(DAPOSettings)
