"""The vLLM engine, in the process of whoever owns it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_dapo.engine.base import CAUSAL_LM_PREFIX, FinishedRequest, SampledAnswer, Sampling
from rllib_dapo.errors import EngineError, SettingError
from rllib_dapo.types import FinishReason, FloatArray

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput

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
        from rllib_dapo.engine import weights

        weights.register()
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
            "weight_transfer_config": WeightTransferConfig(backend=weights.BACKEND),
            "enforce_eager": not on_gpu,
            "disable_log_stats": True,
        }
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
        self._weights_complete = True
        self._shapes: dict[str, tuple[int, ...]] | None = None  # of a complete set, by name
        self.weights_version = 0
        self._engine.set_weight_version("0")
        self.capacity = int(self._engine.vllm_config.scheduler_config.max_num_seqs)

    def submit(
        self, request_id: str, prompt: Sequence[int], n: int, sampling: Sampling, *, seed: int
    ) -> None:
        """Queue a request for n answers to one prompt.

        Raises:
            EngineError: the last weight update failed.
        """
        if not self._weights_complete:
            raise EngineError(
                "the last weight update did not finish, so the engine's weights are a mixture; "
                "load a complete set of weights before sampling"
            )
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
        """Compute one token of every running answer; return the requests now complete."""
        finished = []
        for output in self._engine.step():
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
        return len(self._unfinished)

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

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Replace all weights by vLLM's update protocol and drop the prefix cache.

        Args:
            weights: the RLModule's whole state, arrays or tensors by name. All of it is
                sent, `lm_head.weight` too where embeddings are tied: vLLM keeps its own.
            version: what to call these weights.
        """
        tensors = [
            (name.removeprefix(CAUSAL_LM_PREFIX), _tensor(value)) for name, value in weights.items()
        ]
        self._weights_complete = False
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors}
        self._check_shapes(shapes, version)
        try:
            self._llm.start_weight_update()
            self._llm.update_weights({"update_info": {"weights": tensors}})
            self._llm.finish_weight_update(weight_version=str(version))
        except Exception as error:
            raise EngineError(
                f"weights of version {version} do not fit the engine's model: {error}. Does "
                "`model` name the same model for engine and learner?"
            ) from error
        # Unfinished requests compute their keys and values anew, with the new weights.
        self._llm.reset_prefix_cache(reset_running_requests=True)
        self._shapes = shapes
        self._weights_complete = True
        self.weights_version = version

    def _check_shapes(self, shapes: Mapping[str, tuple[int, ...]], version: int) -> None:
        """Refuse weights unlike the first set: vLLM keeps the old ones where some are missing."""
        expected = shapes if self._shapes is None else self._shapes
        differing = [n for n in {**expected, **shapes} if expected.get(n) != shapes.get(n)]
        if differing:
            name = differing[0]
            raise EngineError(
                f"weights of version {version} do not fit the engine's model: {name} has shape "
                f"{shapes.get(name, 'none: it is missing')}, expected "
                f"{expected.get(name, 'no such name')} ({len(differing)} tensors differ). Does "
                "`model` name the same model for engine and learner?"
            )

    def prompt_logprobs(self, token_ids: Sequence[int]) -> FloatArray:
        """float32[T-1], log p(token t | tokens before t) at temperature 1, for t ≥ 1."""
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        prompts = [{"prompt_token_ids": list(token_ids)}]
        output = self._llm.generate(prompts, params, use_tqdm=False)[0]
        rows = output.prompt_logprobs[1:]
        values = [row[t].logprob for row, t in zip(rows, token_ids[1:], strict=True)]
        return np.array(values, dtype=np.float32)

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


def _tensor(value: Any) -> Any:
    """An array as a tensor over the same memory; tensors pass through."""
    import torch

    if isinstance(value, torch.Tensor):
        return value
    with warnings.catch_warnings():
        # Arrays in Ray's object store are read-only; vLLM only reads them.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(value)
