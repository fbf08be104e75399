"""Settings of the learner: the objective, the optimizer, memory and speed."""

from __future__ import annotations

from collections.abc import Sequence

from rllib_dapo.settings.choices import (
    Aggregation,
    Baseline,
    ComputeDtype,
    ImportanceSampling,
    KLEstimator,
    LearningRateSchedule,
    OldLogprobs,
    RatioLevel,
)


class LearnerSettings:
    """The part of `settings.DAPOSettings` that is about the learner."""

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
    """`token_mean`: each completion token of the global minibatch weighs the same (Eq. 12 over
    the whole minibatch, as the paper's recipe computes it). `sequence_mean`: mean over the
    completions of their token means (GRPO). `constant`: sum over tokens, divided by completions
    times `max_completion_length` (Dr. GRPO). `group_token_mean`: mean over the groups of their
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
