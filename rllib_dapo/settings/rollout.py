"""Settings of rollouts: how problems are sampled, by which engines, with which weights."""

from __future__ import annotations

from typing import Any, Literal

from rllib_dapo.settings.choices import AtLimit, UnfinishedGroups, WeightSyncChoice


class RolloutSettings:
    """The part of `settings.DAPOSettings` that is about rollouts."""

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
    are waited for before the weights change, and kept for the next batch. `abort`: their
    answers are thrown away and the same problems asked first next time. `continue`: they go
    on with the new weights, each token with the log-probability of the weights that sampled
    it (partial rollouts), and a batch takes the first groups to finish, however old their
    first tokens; for answers of very uneven length. With remote runners the same seed gives
    the same run with `finish` only. Paper: not stated."""

    max_staleness: int = 1
    """Groups beyond a full batch are kept for later ones, and come first there, until their
    oldest token was sampled by weights that are so many policy versions old; then they are
    dropped and counted. Their own old log-probabilities account for the difference. 0: no
    group is used after the weights have changed, and no more is asked for than should fill
    the batch. Paper: not stated."""

    async_level: Literal[0, 1] = 0
    """0: sample, then train. 1: sample the next batch while the learner trains on this one;
    what is trained on is then one policy version old (one-step-off). Goes with
    `old_logprobs: learner` and `importance_sampling: token`; needs `num_env_runners` of 1 or
    more. Paper: 0."""

    # -- Runners that fail ----------------------------------------------------------------

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

    tensor_parallel_size: int = 1
    """GPUs of one node over which each engine is spread, for models that do not fit one; set
    `num_gpus_per_env_runner` to the same number. On CPUs: processes."""

    colocate: bool = False
    """Engines and learners share their GPUs: the engines give their memory back while the
    learners train, and take it again with the new weights. Needs GPUs. Paper's recipe:
    shared."""

    # -- Weights for the engines ------------------------------------------------------------

    weight_sync: WeightSyncChoice = "auto"
    """How weights get from the learner into the engines. `object_store`: through the host's
    shared memory and Ray's object store; anywhere. `cuda_ipc`: by reference to memory of the
    GPU that both use. `nccl`: broadcast between GPUs. `auto`: the fastest that the placement
    allows."""

    sync_check_interval: int = 50
    """The first time weights are sent, and every so many times after it, learner and engines
    compare log-probabilities of a fixed prompt. 0: never."""

    sync_check_tolerance: float | None = None
    """Mean absolute difference (nats per token) up to which they agree. None: 1e-3 where engine
    and learner compute in float32, otherwise 5e-2."""
