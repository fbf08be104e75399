"""Settings of rollouts: sampling, failing runners, engines and weight sync."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from rllib_dapo.settings.choices import (
    AtLimit,
    Count,
    EngineDtype,
    Remedy,
    Threads,
    UnfinishedGroups,
    WeightSyncChoice,
)


@dataclass(kw_only=True, eq=False, repr=False)
class RolloutSettings:
    """The settings that say how completions are sampled."""

    # -- Sampling -----------------------------------------------------------------------

    group_size: Annotated[
        int,
        Ge(2),
        Remedy("a completion is compared with the others of its group; use 2 or more"),
    ] = 16
    """G, the number of completions that are sampled for each problem. Paper: 16."""

    groups_per_batch: Count = 32
    """The number of groups that an iteration trains on. Paper: 512."""

    temperature: Annotated[
        float, Gt(0), Remedy("training samples its completions; use a number above 0")
    ] = 1.0
    """The sampling temperature in training. The learner computes its probabilities at the same
    temperature. Paper: 1.0."""

    top_p: Annotated[
        float,
        Ge(1),
        Le(1),
        Remedy(
            "the loss needs the probabilities of the whole distribution; use 1.0 in training and "
            "`evaluation_top_p` for evaluation"
        ),
    ] = 1.0
    """Nucleus sampling in training. A number below 1 is refused, because the sampled distribution
    would no longer be the one whose probabilities the loss compares. Paper: 1.0."""

    stop: Annotated[
        str | Sequence[str],
        Remedy(
            "give a text or a list of texts, in quotes. The conditions that end an experiment, "
            "such as training_iteration, are a mapping `stop` beside `config`, not in it"
        ),
    ] = ()
    """Texts that end a completion, in training and in evaluation, for instance `["\\nProblem:"]`
    for a base model that goes on with problems of its own. Such a completion is finished, not
    truncated. Its tokens stay as they were sampled, and its text ends before the stop. Paper:
    none."""

    include_stop_str_in_output: bool = False
    """Keep the stop text at the end of the completion's text, for instance a `</answer>` that a
    reward looks for."""

    stop_token_ids: Annotated[
        Sequence[Annotated[int, Ge(0)]], Remedy("give a list of token ids, 0 or more")
    ] = ()
    """Token ids that end a completion. The model's EOS, the ids in its generation_config.json and
    the token with which its chat template closes a turn always end one. Paper: none."""

    skip_special_tokens: bool = True
    """Take special tokens out of the text that environments and reward functions see. With
    `false` they stay visible, such as tags that were added to the tokenizer; the token that ends
    the completion and padding are still left out."""

    dynamic_sampling: bool = True
    """Drop the groups whose completions are all correct or all wrong, and sample new problems
    until the batch is full (Section 3.2). With `false`, every group is kept. Paper: true."""

    max_sampling_rounds: Count = 30
    """A batch may request at most this many times `groups_per_batch` problems; then
    `at_sampling_limit` applies. Paper: not stated (its published recipe allows 10 rounds of three
    times the batch)."""

    at_sampling_limit: AtLimit = "error"
    """What happens to a batch that is not full at `max_sampling_rounds`. `error` stops with the
    number of dropped groups by reason. `train_on_partial` trains on the groups that there are.
    `skip` trains on nothing in this iteration and goes on."""

    unfinished_groups: UnfinishedGroups = "finish"
    """What happens to the groups that are in flight when the batch is full. With `finish`, they
    are completed before the weights change, and kept for the next batch. With `abort`, their
    completions are thrown away, and the same problems come first in the next batch. With
    `continue`, they go on under the new weights, each token with the log-probability of the
    weights that sampled it (partial rollouts), and a batch takes the groups that finish first,
    however old their first tokens are; this suits completions of very uneven length. With remote
    runners, the same seed gives the same run under `finish` only. Paper: not stated."""

    max_staleness: Annotated[
        int, Ge(0), Remedy("use 0 (no group is buffered for later weights) or more policy versions")
    ] = 1
    """How many policy versions old the oldest token of a buffered group may be. Groups beyond a
    full batch are buffered, and later batches take them first; a group that has become older is
    dropped and counted. Each group keeps its own old log-probabilities, which account for the
    difference. With 0, no group is used after the weights have changed, and no more groups are
    requested than should fill the batch. Paper: not stated."""

    async_level: Literal[0, 1] = 0
    """With 0, sampling and training take turns. With 1, the next batch is sampled while the
    learner trains on this one, so that training lags one policy version behind (one-step-off).
    Combine 1 with `old_logprobs: learner` and `importance_sampling: token`; it needs
    `num_env_runners` of 1 or more. Paper: 0."""

    # -- Runners that fail ----------------------------------------------------------------

    runner_timeout_s: Annotated[
        float, Gt(0), Remedy("use seconds above 0; longer than one step of the model takes")
    ] = 300.0
    """In seconds. A runner that does not answer for this long, or whose engine has work but makes
    no step for this long, is killed, and its problems are sampled elsewhere. Choose more than one
    step of your model ever takes, the first step included."""

    runner_restart_timeout_s: Annotated[
        float, Gt(0), Remedy("use seconds above 0; longer than an engine takes to start")
    ] = 600.0
    """In seconds: how long to wait for a runner to come back when none is left. RLlib's
    `restart_failed_env_runners` and `max_num_env_runner_restarts` say whether a runner comes
    back."""

    max_problem_attempts: Count = 5
    """Give up on a problem (count it as a failed group) after this many runners have failed while
    they sampled it."""

    # -- The engine ---------------------------------------------------------------------

    dtype: EngineDtype = "float32"
    """The number format of the inference engine. `float32` agrees with the learner to 1e-5, and
    is the faster one on CPUs without bfloat16 units. Use `bfloat16` on GPUs."""

    engine_cpu_threads: Threads = None
    """The number of CPU threads of one engine. None means as many as the process has anyway: Ray
    gives an actor (a trial, a remote runner) as many as its CPUs, usually 1, and a plain Python
    process gets all cores. Models below a few million parameters gain nothing from more than
    1."""

    learner_cpu_threads: Threads = None
    """The number of CPU threads of the learner. None means as many as the process has anyway, see
    `engine_cpu_threads`."""

    kv_cache_gib: Annotated[float, Gt(0), Remedy("use a number of GiB above 0")] = 1.0
    """The memory of the engine's key-value cache on CPUs, in GiB. On GPUs, set
    `gpu_memory_utilization` in `engine_kwargs`."""

    engine_kwargs: dict[str, Any] = field(default_factory=dict)
    """More arguments of `vllm.LLM`, for instance `{"gpu_memory_utilization": 0.5}`."""

    max_engine_gap: Annotated[
        float | None, Ge(0), Remedy("use 0 nats or more, or null for no alarm")
    ] = None
    """In nats. Training stops when the mean absolute difference between the engine's and the
    learner's log-probabilities, before the first update of an iteration, exceeds this. With None
    the difference is only reported."""

    tensor_parallel_size: Count = 1
    """The number of GPUs of one node over which each engine is spread, for models that do not fit
    one GPU. Set `num_gpus_per_env_runner` to the same number. On CPUs it counts processes."""

    colocate: bool = False
    """Let engines and learners share their GPUs: the engines free their memory while the learners
    train, and take it again with the new weights. It needs GPUs. Paper's recipe: shared."""

    # -- Weights for the engines ------------------------------------------------------------

    weight_sync: WeightSyncChoice = "auto"
    """How weights get from the learner into the engines. `object_store` works everywhere, through
    the host's shared memory and Ray's object store. `cuda_ipc` passes a reference to the memory
    of a GPU that both use. `nccl` broadcasts between GPUs. `auto` takes the fastest that the
    placement allows."""

    sync_check_interval: Annotated[int, Ge(0), Remedy("use 0 for no check, or more")] = 50
    """How often learner and engines compare their log-probabilities of a fixed prompt: at the
    first two weight syncs, and at every sync that comes a multiple of this number after the
    first. With 0 they never do."""

    sync_check_tolerance: Annotated[
        float | None,
        Gt(0),
        Remedy("use nats above 0, or null for what the number formats suggest"),
    ] = None
    """In nats per token: the largest mean absolute difference that this comparison accepts. None
    means 1e-3 where engine and learner compute in float32, otherwise 5e-2."""
