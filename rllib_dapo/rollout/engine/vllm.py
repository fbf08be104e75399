"""The vLLM engine, in the process of whoever owns it.

With `tensor_parallel_size` above 1 the weights and the computation are in worker processes,
the scheduler and this class stay with the owner.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_dapo.errors import SettingError
from rllib_dapo.rollout.engine.base import FinishedRequest, SampledAnswer, Sampling
from rllib_dapo.types import FinishReason, FloatArray

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput, RequestOutput

    from rllib_dapo.model.device import Place

# Whoever steps in a loop should not spin while weights are being replaced.
_UPDATE_PAUSE_SECONDS = 0.001
_PROBE = "weight_sync_probe"  # a request of our own, among those of the owner

_FINISH_REASONS: dict[str | None, FinishReason] = {"stop": "stop", "length": "length"}


def _prepare_process(kv_cache_gib: float) -> None:
    """Set what vLLM reads from the environment while it is imported and started."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine lives in this process
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, round(kv_cache_gib)))
    # Binding is done for worker processes of its own only; the number of threads is ours to set.
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"


class VLLMEngine:
    """An `InferenceEngine` over `vllm.LLM`.

    Args:
        model: a Hugging Face folder or hub id.
        dtype: number format of weights and activations, for instance `float32`.
        max_model_len: prompt plus answer, tokens.
        stop_token_ids: every id that ends an answer; the one sampled stays in the answer.
        seed: initial seed of the sampler.
        trust_remote_code: run Python code that comes with the model.
        kv_cache_gib: key-value cache on CPUs, GiB.
        tensor_parallel_size: GPUs (on CPUs: processes) of this node that share the model.
        sleep_mode: allocate GPU memory so that `sleep` can give it up.
        engine_kwargs: more arguments of `vllm.LLM`; they win over ours.

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
        trust_remote_code: bool = False,
        kv_cache_gib: float = 1.0,
        tensor_parallel_size: int = 1,
        sleep_mode: bool = False,
        engine_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        _prepare_process(kv_cache_gib)
        try:
            import torch
            import vllm
            from vllm.config import WeightTransferConfig
        except ImportError as error:
            raise SettingError(
                f"vLLM cannot be imported ({error}). Install the extra for this machine: "
                "`pip install rllib-dapo[cpu]` or `pip install rllib-dapo[gpu]`."
            ) from error
        from rllib_dapo.rollout.engine import transfer_engine
        from rllib_dapo.rollout.engine.served_weights import ServedWeights

        on_gpu = torch.cuda.is_available()
        arguments: dict[str, Any] = {
            "model": model,
            "dtype": dtype,
            "max_model_len": max_model_len,
            "seed": seed,
            "trust_remote_code": trust_remote_code,
            # The log-probabilities of the distribution that was sampled from.
            "logprobs_mode": "processed_logprobs",
            # Ignore generation_config.json: no top-k or repetition penalty slips in.
            "generation_config": "vllm",
            "weight_transfer_config": WeightTransferConfig(backend=transfer_engine.BACKEND),
            # Makes our weight transfer engine known in every worker, see there.
            "worker_extension_cls": "rllib_dapo.rollout.engine.worker_extension.WorkerExtension",
            "tensor_parallel_size": tensor_parallel_size,
            "enforce_eager": not on_gpu,
            "disable_log_stats": True,
        }
        if tensor_parallel_size > 1:  # not Ray's: this may be one of its actors already
            arguments["distributed_executor_backend"] = "mp"
        if sleep_mode:
            arguments["enable_sleep_mode"] = True
        if not on_gpu:
            # A prompt cut into chunks winds the request's random stream back, which
            # generators of the CPU cannot.
            arguments |= {
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": max(4096, max_model_len),
            }
        try:
            self._llm = vllm.LLM(**{**arguments, **(engine_kwargs or {})})
        except (TypeError, ValueError) as error:
            raise SettingError(
                f"model={model!r}, engine_kwargs={dict(engine_kwargs or {})!r}: vLLM refuses to "
                f"start: {error}",
                setting="engine_kwargs",
            ) from error
        self._engine = self._llm.llm_engine
        self._stop_token_ids = list(stop_token_ids)
        self._unfinished: set[str] = set()
        self._finished_early: list[FinishedRequest] = []
        self.weights = ServedWeights(self._llm, own_processes=tensor_parallel_size > 1)
        self.capacity = int(self._engine.vllm_config.scheduler_config.max_num_seqs)

    def submit(
        self, request_id: str, prompt: Sequence[int], n: int, sampling: Sampling, *, seed: int
    ) -> None:
        """Queue a request for n answers to one prompt.

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
            seed=seed,  # vLLM gives answer i the seed + i
            stop_token_ids=self._stop_token_ids,
            logprobs=0,  # of the sampled token, nothing more
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._engine.add_request(request_id, {"prompt_token_ids": list(prompt)}, params)
        self._unfinished.add(request_id)

    def step(self) -> list[FinishedRequest]:
        """Compute one token of every running answer; return the requests now complete.

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
        """Those of the owner's requests that are complete."""
        finished = []
        for output in outputs:
            if output.finished and output.request_id in self._unfinished:
                self._unfinished.discard(output.request_id)
                answers = sorted(output.outputs, key=lambda o: o.index)
                finished.append(
                    FinishedRequest(output.request_id, tuple(_answer(a) for a in answers))
                )
        return finished

    @property
    def num_unfinished(self) -> int:
        """Requests submitted and not yet returned."""
        return len(self._unfinished) + len(self._finished_early)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Withdraw unfinished requests; others are passed over."""
        known = [request_id for request_id in request_ids if request_id in self._unfinished]
        self._engine.abort_request(known)
        self._unfinished.difference_update(known)

    def abort_all(self) -> None:
        """Withdraw every unfinished request."""
        self.abort(sorted(self._unfinished))
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
            weights: the RLModule's whole state, arrays or tensors by name. All of it is
                sent, `lm_head.weight` too where embeddings are tied: vLLM keeps its own.
            version: what to call these weights.
            checksums: of the tensors as the learner sent them; None does not check.
        """
        self.weights.load(weights, version, checksums)

    def prompt_logprobs(self, token_ids: Sequence[int]) -> FloatArray:
        """float32[T-1], log p(token t | tokens before t) at temperature 1, for t ≥ 1.

        Running requests go on meanwhile.

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

    def places(self) -> list[Place]:
        """Where its workers compute, in order of their ranks."""
        return list(self._engine.collective_rpc("worker_place"))

    def shutdown(self) -> None:
        """Free the engine's memory."""
        if (core := getattr(self._engine, "engine_core", None)) is not None:
            core.shutdown()


def _answer(output: CompletionOutput) -> SampledAnswer:
    """One answer as vLLM records it, as ours."""
    token_ids = np.fromiter(output.token_ids, dtype=np.int64)
    # One entry per position: the sampled token's own.
    logprobs = np.fromiter(output.logprobs.logprobs, dtype=np.float32)
    reason = _FINISH_REASONS.get(output.finish_reason, "abort")
    spans = output.weight_versions or ()
    return SampledAnswer(
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
