"""The vLLM engine, in the process of its owner.

With `tensor_parallel_size` above 1 the weights and the computation are in worker processes;
the scheduler and this class stay in the owner's process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_dapo.errors import SettingError
from rllib_dapo.rollout.engine.base import FinishedRequest, SampledCompletion, Sampling
from rllib_dapo.types import FinishReason, FloatArray

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput, RequestOutput

# A loop of steps should not spin while weights are being replaced.
_UPDATE_PAUSE_SECONDS = 0.001
_PROBE = "weight_sync_probe"  # the id of our own request, among those of the owner

_FINISH_REASONS: dict[str | None, FinishReason] = {"stop": "stop", "length": "length"}


class VLLMEngine:
    """An `InferenceEngine` over `vllm.LLM`.

    Args:
        model: a Hugging Face folder or hub id.
        dtype: the number format of weights and activations, for instance `float32`.
        max_model_len: the most tokens of prompt and completion together.
        stop_token_ids: every id that ends a completion; the one sampled stays in it.
        stop: strings that end a completion, searched for in its text as it is sampled. The
            tokens that complete the string stay in the completion.
        skip_special_tokens: whether that text is without special tokens.
        seed: initial seed of the sampler.
        trust_remote_code: run Python code that comes with the model.
        kv_cache_gib: size of the key-value cache on CPUs, in GiB.
        tensor_parallel_size: GPUs (on CPUs: processes) of this node that share the model.
        sleep_mode: allocate GPU memory so that `sleep` can give it up.
        engine_kwargs: more arguments of `vllm.LLM`; they win over ours.

    Attributes:
        weights: which weights serve; every update goes through it.
        capacity: how many completions it computes at once.

    Raises:
        SettingError: vLLM is not installed, or refuses an argument.
    """

    def __init__(
        self,
        model: str,
        *,
        dtype: str,
        max_model_len: int,
        stop_token_ids: Sequence[int],
        seed: int,
        stop: Sequence[str] = (),
        skip_special_tokens: bool = True,
        trust_remote_code: bool = False,
        kv_cache_gib: float = 1.0,
        tensor_parallel_size: int = 1,
        sleep_mode: bool = False,
        engine_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        _set_environment(kv_cache_gib)
        arguments = {
            "model": model,
            "dtype": dtype,
            "max_model_len": max_model_len,
            "seed": seed,
            "trust_remote_code": trust_remote_code,
            **_device_arguments(tensor_parallel_size, sleep_mode, max_model_len),
        }
        self._llm = _start(arguments, engine_kwargs or {})
        from rllib_dapo.rollout.engine.served_weights import ServedWeights

        self._engine = self._llm.llm_engine
        self._stop_token_ids = list(stop_token_ids)
        self._stop = list(stop)
        self._skip_special_tokens = skip_special_tokens
        self._in_flight: set[str] = set()
        self._finished_early: list[FinishedRequest] = []
        self.weights = ServedWeights(self._llm, own_processes=tensor_parallel_size > 1)
        self.capacity = int(self._engine.vllm_config.scheduler_config.max_num_seqs)

    def submit(
        self, request_id: str, prompt: Sequence[int], n: int, sampling: Sampling, *, seed: int
    ) -> None:
        """Queue a request for n completions of one prompt.

        Raises:
            EngineError: the last weight update failed.
        """
        self.weights.require_usable()
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            n=n,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            seed=seed,  # vLLM gives completion i the seed + i
            stop_token_ids=self._stop_token_ids,
            logprobs=0,  # of the sampled token only
            flat_logprobs=True,
            stop=self._stop,
            detokenize=bool(self._stop),  # strings are searched for in the text
            skip_special_tokens=self._skip_special_tokens,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._engine.add_request(request_id, {"prompt_token_ids": list(prompt)}, params)
        self._in_flight.add(request_id)

    def step(self) -> list[FinishedRequest]:
        """Compute one token of every running completion; return the requests now complete.

        While the weights are being replaced it computes nothing.

        Raises:
            EngineError: the weights must not serve: an update failed, or the engine sleeps.
        """
        finished, self._finished_early = self._finished_early, []
        if self.weights.updating:
            time.sleep(_UPDATE_PAUSE_SECONDS)
        else:
            self.weights.require_usable()
            finished += self._known(self._engine.step())
        return finished

    def _known(self, outputs: Sequence[RequestOutput]) -> list[FinishedRequest]:
        """The owner's requests that are complete."""
        finished = []
        for output in outputs:
            if output.finished and output.request_id in self._in_flight:
                self._in_flight.discard(output.request_id)
                outputs_in_order = sorted(output.outputs, key=lambda o: o.index)
                completions = tuple(_completion(o) for o in outputs_in_order)
                finished.append(FinishedRequest(output.request_id, completions))
        return finished

    @property
    def num_in_flight(self) -> int:
        """How many requests are in flight: submitted and not yet returned."""
        return len(self._in_flight) + len(self._finished_early)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Withdraw requests in flight; unknown ids are ignored."""
        known = [request_id for request_id in request_ids if request_id in self._in_flight]
        self._engine.abort_request(known)
        self._in_flight.difference_update(known)

    def abort_all(self) -> None:
        """Withdraw every request in flight."""
        self.abort(sorted(self._in_flight))
        while self._engine.has_unfinished_requests():
            self._engine.step()

    # -- Weights ------------------------------------------------------------------------------

    @property
    def weights_version(self) -> int:
        """Version of the weights that serve."""
        return self.weights.version

    def load_weights(
        self, weights: Mapping[str, Any], version: int, checksums: Mapping[str, int] | None = None
    ) -> None:
        """Replace all weights by vLLM's update protocol and drop the prefix cache.

        Args:
            weights: the RLModule's whole state, arrays or tensors by name. It includes
                `lm_head.weight` where embeddings are tied, because vLLM keeps its own.
            version: the version that these weights get.
            checksums: the tensors' checksums as the learner sent them; None does not check.
        """
        self.weights.load(weights, version, checksums)

    def prompt_logprobs(self, token_ids: Sequence[int]) -> FloatArray:
        """float32[T-1], log p(token t | tokens before t) at temperature 1, for t ≥ 1.

        Requests in flight go on meanwhile.

        Raises:
            EngineError: the weights must not serve.
        """
        self.weights.require_usable()
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        self._engine.add_request(_PROBE, {"prompt_token_ids": list(token_ids)}, params)
        while True:
            outputs = self._engine.step()
            self._finished_early += self._known(outputs)
            for output in outputs:
                if output.request_id == _PROBE and output.finished:
                    rows = output.prompt_logprobs[1:]
                    values = [row[t].logprob for row, t in zip(rows, token_ids[1:], strict=True)]
                    return np.array(values, dtype=np.float32)

    def places(self) -> list[Any]:
        """Where the engine's workers compute (`model.device.Place`, which needs torch), by rank."""
        return list(self._engine.collective_rpc("worker_place"))

    def shutdown(self) -> None:
        """Free the engine's memory."""
        if (core := getattr(self._engine, "engine_core", None)) is not None:
            core.shutdown()


# -- Starting vLLM ----------------------------------------------------------------------------


def _set_environment(kv_cache_gib: float) -> None:
    """Set what vLLM reads from the environment of its process when it is imported and started."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine lives in this process
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, round(kv_cache_gib)))
    # vLLM binds threads of its worker processes only; `engine_cpu_threads` sets their number.
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"


def _device_arguments(
    tensor_parallel_size: int, sleep_mode: bool, max_model_len: int
) -> dict[str, Any]:
    """Arguments of `vllm.LLM` that depend on the devices and processes it runs on."""
    import torch

    on_gpu = torch.cuda.is_available()
    arguments: dict[str, Any] = {
        "tensor_parallel_size": tensor_parallel_size,
        "enforce_eager": not on_gpu,
    }
    if tensor_parallel_size > 1:  # not Ray's workers: this may be an actor of Ray already
        arguments["distributed_executor_backend"] = "mp"
    if sleep_mode:
        arguments["enable_sleep_mode"] = True
    if not on_gpu:
        # A prompt that is cut into chunks winds the request's random stream back, which random
        # number generators on CPUs cannot do.
        arguments |= {
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(4096, max_model_len),
        }
    return arguments


def _start(arguments: Mapping[str, Any], engine_kwargs: Mapping[str, Any]) -> Any:
    """Start a `vllm.LLM` with these arguments and those that every engine has."""
    try:
        import vllm
        from vllm.config import WeightTransferConfig
    except ImportError as error:
        raise SettingError(
            f"vLLM cannot be imported ({error}). Install the extra for this machine: "
            "`pip install rllib-dapo[cpu]` or `pip install rllib-dapo[gpu]`."
        ) from error
    from rllib_dapo.rollout.engine import transfer_engine

    fixed = {
        # The log-probabilities of the distribution that was sampled from.
        "logprobs_mode": "processed_logprobs",
        # Ignore generation_config.json, so that no top-k or repetition penalty slips in.
        "generation_config": "vllm",
        "weight_transfer_config": WeightTransferConfig(backend=transfer_engine.BACKEND),
        # Makes our weight transfer engine known in every worker.
        "worker_extension_cls": f"{transfer_engine.__name__}.WorkerExtension",
        "disable_log_stats": True,
    }
    try:
        return vllm.LLM(**{**arguments, **fixed, **engine_kwargs})
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"model={arguments['model']!r}, engine_kwargs={dict(engine_kwargs)!r}: vLLM refuses "
            f"to start: {error}",
            setting="engine_kwargs",
        ) from error


def _completion(output: CompletionOutput) -> SampledCompletion:
    """One completion of vLLM's as one of ours."""
    token_ids = np.fromiter(output.token_ids, dtype=np.int64)
    # One entry per position, for the sampled token.
    logprobs = np.fromiter(output.logprobs.logprobs, dtype=np.float32)
    reason = _FINISH_REASONS.get(output.finish_reason, "abort")
    spans = output.weight_versions or ()
    return SampledCompletion(
        token_ids, logprobs, reason, tuple((span.start, int(span.version)) for span in spans)
    )


def colocate_refusal(engine_kwargs: dict[str, Any]) -> str | None:
    """Why engines cannot sleep here while the learner trains (`colocate`), or None."""
    import torch

    if not torch.cuda.is_available():
        return (
            "vLLM's sleep mode gives up GPU memory, and this machine has no CUDA device; set "
            "`colocate` to false"
        )
    if engine_kwargs.get("enable_sleep_mode") is False:
        return "`engine_kwargs` turns `enable_sleep_mode` off; leave it out"
    return None
