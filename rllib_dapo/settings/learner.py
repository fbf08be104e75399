"""Settings of the learner: the objective, the optimizer, memory and speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

from rllib_dapo.settings.choices import (
    FINITE,
    Aggregation,
    Baseline,
    ComputeDtype,
    Count,
    ImportanceSampling,
    KLEstimator,
    LearningRateSchedule,
    MinibatchUnit,
    OldLogprobs,
    RatioLevel,
    Remedy,
    Tokens,
)


@dataclass(kw_only=True, eq=False, repr=False)
class LearnerSettings:
    """The settings that say how the learner updates the policy."""

    # -- The objective ------------------------------------------------------------------

    clip_low: Annotated[
        float, Gt(0), Lt(1), Remedy("use a number between 0 and 1; the paper has 0.2")
    ] = 0.2
    """ε_low: the ratio is clipped below at 1 - ε_low. Paper: 0.2."""

    clip_high: Annotated[float, Ge(0), Remedy("use 0 or more; the paper has 0.28")] = 0.28
    """ε_high: the ratio is clipped above at 1 + ε_high (clip-higher). The clip is symmetric, as
    in GRPO, where it equals `clip_low`. Paper: 0.28."""

    dual_clip: Annotated[float | None, Gt(1), Remedy("use a number above 1, or null for none")] = (
        None
    )
    """For negative advantages, the objective is bounded below by this multiple of the advantage.
    None means that there is no such bound. Paper: none; its published recipe has 10."""

    ratio_level: RatioLevel = "token"
    """With `token`, every token has its own ratio (Eq. 9). With `sequence`, all tokens of a
    completion have the geometric mean of its ratios (GSPO, arXiv 2507.18071, which combines it
    with `sequence_mean` and a far narrower clip: 3e-4 below, 4e-4 above). Paper: token."""

    loss_aggregation: Aggregation = "token_mean"
    """How the losses of the tokens are averaged. With `token_mean`, each completion token of the
    global minibatch weighs the same (Eq. 12 over the whole minibatch). With `sequence_mean`, the
    loss is the mean over the completions of their token means (GRPO). With `constant`, it is the
    sum over the tokens, divided by the number of completions times `max_completion_length` (Dr.
    GRPO). With `group_token_mean`, it is the mean over the groups of their token means (Eq. 12 of
    each group), which needs whole groups in a minibatch: `minibatch_by: group`, or a
    `minibatch_size` of the whole batch. Paper: Eq. 12."""

    minibatch_by: MinibatchUnit = "completion"
    """What minibatches are drawn by. With `completion`, each is a random choice of the batch's
    completions. With `group`, it is a random choice of whole groups: `group_token_mean` is then
    Eq. 12 to the letter, and `share_prompts` finds all completions of a prompt together.
    `minibatch_size` must then be a multiple of `group_size`. Paper: not stated; its published
    recipe draws completions."""

    normalize_advantage_std: bool = True
    """Divide a group's advantages by the standard deviation of its rewards (Eq. 9). Dr. GRPO
    does not. Paper: true."""

    advantage_baseline: Baseline = "group_mean"
    """What a completion's reward is compared with: the mean reward of its group (`group_mean`,
    Eq. 9), or that of the other completions only (`leave_one_out`). Paper: group_mean."""

    entropy_coeff: Annotated[float, FINITE, Remedy("use a number, 0 for no entropy bonus")] = 0.0
    """The weight of an entropy bonus in the objective. Paper: none."""

    kl_coeff: Annotated[float, Ge(0), Remedy("use 0 for no reference policy, or more")] = 0.0
    """The weight of a penalty for leaving the untrained `model`, which is then kept in memory
    beside the trained one (with `lora_rank` it is there anyway). With 0 there is neither a
    penalty nor a second model. Paper: 0."""

    kl_estimator: KLEstimator = "k3"
    """How the penalty estimates the KL divergence from the sampled tokens. `k3` is the estimator
    of GRPO. `k2` has the exact gradient on the sampling policy. `k1` has no gradient on average
    and serves for comparison."""

    # -- The policy that sampled ----------------------------------------------------------

    old_logprobs: OldLogprobs = "engine"
    """Where the old log-probabilities of the ratio come from. With `engine`, they are those with
    which the engine sampled. With `learner`, the learner computes them before the first update,
    at the cost of one more forward pass; this suits engines whose arithmetic differs from the
    learner's (bfloat16, quantization). Paper's recipe: learner."""

    importance_sampling: ImportanceSampling = "none"
    """With `old_logprobs: learner`, multiply the objective of each token by an importance weight:
    the ratio of the learner's to the engine's probability. This corrects for sampling with other
    arithmetic or older weights. With `token`, it is the token's own ratio; with `sequence`, the
    product of the ratios of its completion. Paper: none."""

    importance_cap: Annotated[
        float,
        Ge(1),
        Remedy(
            "use 1 or more, such as 2.0: below 1, tokens on which engine and learner agree would "
            "lose weight"
        ),
    ] = 2.0
    """The largest importance weight: larger ones are truncated to it."""

    importance_mask_above: Annotated[
        float | None,
        Gt(1),
        Remedy(
            "use a number above 1, or null for no mask: at 1 or below, tokens on which engine and "
            "learner agree would be masked"
        ),
    ] = None
    """With `old_logprobs: learner`, leave out of the loss, numerator and denominator alike, the
    tokens whose ratio of the learner's to the engine's probability is above this number or below
    its inverse. None leaves out no token."""

    # -- The optimizer ------------------------------------------------------------------

    warmup_iterations: Annotated[int, Ge(0), Remedy("use 0 for none, or more")] = 20
    """The number of iterations (rollout steps) over which `lr` rises linearly to its full value.
    0 means no warm-up. Paper: 20."""

    lr_schedule: LearningRateSchedule = "constant"
    """What `lr` does after the warm-up: it stays `constant`, or it falls as a `cosine` to
    `lr_end_factor` times `lr` at iteration `lr_decay_iterations`. Paper: constant."""

    lr_decay_iterations: int | None = None
    """The iteration at which `lr_schedule: cosine` ends; it must lie after the warm-up."""

    lr_end_factor: Annotated[float, Ge(0), Le(1), Remedy("use a share of `lr`, from 0 to 1")] = 0.0
    """The share of `lr` to which `lr_schedule: cosine` falls."""

    weight_decay: Annotated[float, Ge(0), Remedy("use 0 for none, or a number above 0")] = 0.1
    """AdamW's decoupled weight decay. Paper's recipe: 0.1."""

    adam_beta2: Annotated[
        float, Ge(0), Lt(1), Remedy("use a number from 0 to below 1, such as 0.999")
    ] = 0.999
    """The decay of AdamW's second moment; that of the first is 0.9. Paper: not stated."""

    max_skipped_updates: Count = 5
    """An update whose loss or gradient is not finite is skipped and counted. After this many in a
    row, training stops with an error and saves the last minibatch."""

    # -- The learner's memory and speed -----------------------------------------------------

    max_tokens_per_microbatch: Tokens = 16384
    """The number of tokens that go through the model at once. It bounds the learner's memory and
    does not change the gradient."""

    packing: bool = True
    """Lay a micro-batch out as one row without padding. With `false`, rows are padded and sorted
    by length; models whose attention cannot be told where sequences end need that."""

    share_prompts: bool = True
    """With `packing`, compute a prompt only once for all its completions in a micro-batch."""

    gradient_checkpointing: bool = False
    """Compute a layer's activations again in the backward pass instead of keeping them: this
    saves memory and costs time."""

    compute_dtype: ComputeDtype = "float32"
    """The number format of the learner's forward and backward pass. The weights, the sums of
    gradients and the optimizer's state stay float32. `bfloat16` is for GPUs. Paper's recipe:
    bfloat16."""

    shard_model: bool = False
    """Shard weights, gradients and optimizer state over the learners (FSDP2), for models that do
    not fit one learner. With `false`, each learner has all of them. It needs `num_learners` of 2
    or more. Paper's recipe: sharded."""

    lora_rank: Annotated[
        int | None,
        Ge(1),
        Remedy("it must be at least 1 (usual are 8 to 64); to train all weights leave it unset"),
    ] = None
    """Train low-rank adapters of this rank (LoRA, arXiv 2106.09685) instead of all weights; the
    engines get the weights with the adapters added. None trains all weights. Paper: none."""

    lora_alpha: Annotated[float, Gt(0), Remedy("it must be above 0; usual is twice lora_rank")] = (
        32.0
    )
    """The adapters are multiplied by `lora_alpha / lora_rank`."""

    lora_target_modules: Annotated[
        str | Sequence[str], Remedy("use all-linear, or a list of module names")
    ] = "all-linear"
    """Which layers get adapters: `all-linear` (all linear layers but the output head), or a list
    of module names such as `[q_proj, v_proj]`."""
