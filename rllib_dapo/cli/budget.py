"""The memory, the tokens and the bytes that a run of DAPO takes, from its settings alone.

Everything here is arithmetic on `RunSettings` and `ModelSize`; `plan` prints it. Parameters,
gradients and AdamW's moments are float32 (4 + 4 + 8 bytes a parameter), so a learner holds

    16 P / S  +  max(activations + gathered weights + logits, 4 P / S)

bytes, with P parameters over S shards; the optimizer's step needs a temporary of 4 P / S when
the activations are gone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

from rllib_dapo.losses.logprobs import tokens_at_once
from rllib_dapo.model.size import LayerActivations, ModelSize
from rllib_dapo.settings.run import RunSettings

GIB = 2**30
_LOGITS_COPIES = 3
"""Of a chunk of float32 logits (`losses.logprobs`): themselves, their softmax, their gradient."""

_VLLM_GPU_MEMORY_UTILIZATION = 0.9
_VLLM_WORKSPACE = 2 * GIB
"""What vLLM needs of a GPU beside weights and cache. It measures this itself when it starts."""

_CALL_BYTES = 12  # of a completion token on its way to the driver: docs/scaling.md
_BATCH_COMPLETION_BYTES, _BATCH_PROMPT_BYTES = 28, 8  # of a token in the token batch


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What the settings do not say.

    Attributes:
        prompt_tokens: the mean length of a prompt.
        completion_tokens: the mean length of a completion.
        keep_rate: the share of sampled groups that dynamic sampling keeps.
        gpu_memory_gib: the memory of a GPU; None checks nothing.
        runner_tokens_per_s: completion tokens a second that one runner samples.
        learner_tflops: 10¹² operations a second that one learner does.
        network_gib_per_s: GiB a second from the learners to a runner.
    """

    prompt_tokens: float
    completion_tokens: float
    keep_rate: float
    gpu_memory_gib: float | None = None
    runner_tokens_per_s: float | None = None
    learner_tflops: float | None = None
    network_gib_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class LearnerLayout:
    """How the model is spread over the learners, and how it computes.

    Attributes:
        trained: parameters that are trained (with `lora_rank` the adapters only).
        shards: over how many learners each tensor is sliced.
        reference: whether a frozen copy of the model is held beside it (`kl_coeff`).
        half: whether it computes in bfloat16.
        checkpointing: whether layers are computed again in the backward pass.
        microbatch_tokens: the most tokens of a micro-batch.
    """

    trained: int
    shards: int
    reference: bool
    half: bool
    checkpointing: bool
    microbatch_tokens: int

    @property
    def sharded(self) -> bool:
        """Whether the layers are gathered one by one."""
        return self.shards > 1


def learner_layout(settings: RunSettings, size: ModelSize, trained: int | None) -> LearnerLayout:
    """Read the layout of the learners from the settings.

    Args:
        settings: the run's.
        size: the model's.
        trained: parameters of the adapters; None where the whole model is trained.
    """
    longest = settings.max_prompt_length + settings.max_completion_length
    return LearnerLayout(
        trained=size.parameters if trained is None else trained,
        shards=max(1, settings.num_learners) if settings.shard_model else 1,
        # Adapters that are switched off are their own reference.
        reference=bool(settings.kl_coeff) and trained is None,
        half=settings.compute_dtype == "bfloat16",
        checkpointing=settings.gradient_checkpointing,
        microbatch_tokens=max(settings.max_tokens_per_microbatch, longest),
    )


def learner_memory(
    layout: LearnerLayout, size: ModelSize, layer: LayerActivations
) -> dict[str, float]:
    """Return the bytes of one learner by what they hold; `peak` is the most at one time."""
    share = 1 / layout.shards
    held = {
        "weights": 4 * size.parameters * share,
        "gradients": 4 * layout.trained * share,
        "AdamW's moments": 8 * layout.trained * share,
    }
    if layout.reference:
        held["reference policy"] = 4 * size.parameters * share
    chunk = min(layout.microbatch_tokens, tokens_at_once(size.vocabulary))
    passing = {
        "activations": _activations(layout, size, layer),
        "logits of a chunk": 4.0 * _LOGITS_COPIES * size.vocabulary * chunk,
    }
    if layout.sharded:
        # The root's group stays gathered with its gradients, and a layer is prefetched.
        gathered = 2 * (size.outside_layers + size.largest_layer) + size.largest_layer
        passing["gathered layers"] = gathered * (2 if layout.half else 4)
    optimizer_step = 4 * layout.trained * share
    peak = sum(held.values()) + max(sum(passing.values()), optimizer_step)
    return {**held, **passing, "peak": peak}


def _activations(layout: LearnerLayout, size: ModelSize, layer: LayerActivations) -> float:
    tokens = layout.microbatch_tokens
    of_a_layer = tokens * layer.per_token + layer.fixed
    if not layout.checkpointing:
        return size.layers * of_a_layer
    # Under autocast the residual stream stays float32.
    residual = 2 if layout.half and layout.sharded else 4
    return size.layers * tokens * size.hidden * residual + of_a_layer


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """The memory of an engine on each of its GPUs, in bytes.

    Attributes:
        weights: the model's.
        cache: what is left for keys and values; None if the memory of a GPU is not known.
        token: keys and values of one token.
    """

    weights: float
    cache: float | None
    token: float

    def completions(self, tokens: float) -> int | None:
        """How many sequences of this many tokens fit in the cache."""
        return None if self.cache is None else int(max(0.0, self.cache) // (self.token * tokens))


def engine_memory(
    settings: RunSettings, size: ModelSize, gpu_memory_gib: float | None
) -> EngineMemory:
    """Compute the memory of an engine.

    Args:
        settings: the run's.
        size: the model's.
        gpu_memory_gib: the memory of a GPU; on CPUs `kv_cache_gib` is the cache.
    """
    width = engine_width(settings)
    parts = settings.tensor_parallel_size
    weights = width * size.parameters / parts
    if not settings.num_gpus_per_env_runner:
        cache: float | None = settings.kv_cache_gib * GIB
    elif gpu_memory_gib is None:
        cache = None
    else:
        default = _VLLM_GPU_MEMORY_UTILIZATION
        share = float(settings.engine_kwargs.get("gpu_memory_utilization", default))
        cache = share * gpu_memory_gib * GIB - weights - _VLLM_WORKSPACE
    return EngineMemory(weights, cache, width * size.kv_values / parts)


def engine_width(settings: RunSettings) -> int:
    """Bytes of a value in the engine; `auto` is counted as the half precision of most models."""
    return 4 if settings.dtype in ("float32", "float") else 2


@dataclass(frozen=True, slots=True)
class Step:
    """What one step samples, trains and moves.

    Attributes:
        groups_sampled: groups, dropped ones too.
        tokens_sampled: completion tokens of all of them.
        tokens_trained: tokens of prompts and completions of one epoch, before prompts are shared.
        updates: optimizer steps.
        flops: operations of the learners: 6 for each parameter and token, and 2 more for each
            further forward pass (`old_logprobs: learner`, `kl_coeff`).
        object_store: bytes of the groups on their way to the driver.
        batch: bytes of the token batch.
        sync: bytes of the weights that each engine receives.
    """

    groups_sampled: float
    tokens_sampled: float
    tokens_trained: float
    updates: int
    flops: float
    object_store: float
    batch: float
    sync: float


def step(settings: RunSettings, size: ModelSize, given: Assumptions) -> Step:
    """Compute what one step samples, trains and moves."""
    groups = settings.groups_per_batch / given.keep_rate
    completions = settings.groups_per_batch * settings.group_size
    sampled = groups * settings.group_size * given.completion_tokens
    trained = completions * (given.prompt_tokens + given.completion_tokens)
    forwards = (settings.old_logprobs == "learner") + bool(settings.kl_coeff)
    characters = 4  # of text for each token, in English
    batch = completions * (
        _BATCH_COMPLETION_BYTES * given.completion_tokens
        + _BATCH_PROMPT_BYTES * given.prompt_tokens
    )
    ahead = 2 if settings.async_level else 1
    return Step(
        groups_sampled=groups,
        tokens_sampled=sampled,
        tokens_trained=trained,
        updates=settings.num_epochs * -(-completions // settings.minibatch_size),
        flops=size.parameters * trained * (6 * settings.num_epochs + 2 * forwards),
        object_store=sampled * (_CALL_BYTES + characters) * ahead,
        batch=batch,
        # Only bfloat16 is sent as it is; every other format is sent as float32.
        sync=(2 if settings.dtype == "bfloat16" else 4) * size.parameters,
    )


def seconds(settings: RunSettings, work: Step, given: Assumptions) -> dict[str, float]:
    """Return the seconds of a step by phase, for those phases whose rate is given."""
    phases = {}
    if given.runner_tokens_per_s:
        rate = max(1, settings.num_env_runners) * given.runner_tokens_per_s
        phases["sampling"] = work.tokens_sampled / rate
    if given.learner_tflops:
        rate = max(1, settings.num_learners) * given.learner_tflops * 1e12
        phases["learning"] = work.flops / rate
    if given.network_gib_per_s:
        phases["weight sync"] = work.sync / (given.network_gib_per_s * GIB)
    if len(phases) == 3:
        sampling, learning = phases["sampling"], phases["learning"]
        both = max(sampling, learning) if settings.async_level else sampling + learning
        phases["step"] = both + phases["weight sync"]
    return phases


def learner_remedies(
    layout: LearnerLayout,
    size: ModelSize,
    layer: Callable[[LearnerLayout], LayerActivations],
    longest: int,
    gpu_memory: float,
) -> list[str]:
    """Return the changes, each alone, after which a learner fits on its GPU.

    Args:
        layout: what does not fit.
        size: the model's.
        layer: counts what a layer keeps in a layout.
        longest: the most tokens of one prompt and its completion.
        gpu_memory: bytes of the GPU.
    """

    def fits(changed: LearnerLayout) -> bool:
        return learner_memory(changed, size, layer(changed))["peak"] <= gpu_memory

    def too_many(tokens: int) -> bool:
        return not fits(replace(layout, microbatch_tokens=tokens))

    remedies = []
    if not layout.checkpointing and fits(replace(layout, checkpointing=True)):
        remedies.append("`gradient_checkpointing: true`")
    if not layout.half and fits(replace(layout, half=True)):
        remedies.append("`compute_dtype: bfloat16`")
    if longest < layout.microbatch_tokens and not too_many(longest):
        smaller = range(longest, layout.microbatch_tokens)
        most = smaller[bisect_left(smaller, True, key=too_many) - 1]
        remedies.append(f"`max_tokens_per_microbatch: {most}`")
    numbers = (2**i for i in range(1, 13))
    more = (n for n in numbers if n > layout.shards and fits(replace(layout, shards=n)))
    if shards := next(more, None):
        remedies.append(f"`shard_model: true` with `num_learners: {shards}`")
    return remedies
