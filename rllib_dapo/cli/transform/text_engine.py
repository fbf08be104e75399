"""A language model that answers texts with texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rllib_dapo.data.prompts import PromptRenderer, PromptTooLong
from rllib_dapo.errors import SettingError
from rllib_dapo.model.facts import load_tokenizer, model_facts
from rllib_dapo.rollout.engine.base import InferenceEngine, Sampling, stream_seed
from rllib_dapo.rollout.engine.vllm import VLLMEngine


class TextEngine(Protocol):
    """What the transformation needs of a language model."""

    def generate(self, prompts: Sequence[str], n: int, sampling: Sampling) -> list[list[str]]:
        """`n` answers to each prompt, in order; none to a prompt that is too long."""
        ...


class EngineTexts:
    """A `TextEngine` over an inference engine and its tokenizer.

    Args:
        engine: answers token ids.
        renderer: makes token ids of a user's text, by the chat template where there is one.
        tokenizer: makes texts of the answers.
        max_length: longest prompt plus answer, in tokens.
        seed: of the random streams.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        renderer: PromptRenderer,
        tokenizer: object,
        max_length: int,
        *,
        seed: int = 0,
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._seed = seed
        self._asked = 0

    def generate(self, prompts: Sequence[str], n: int, sampling: Sampling) -> list[list[str]]:
        """`n` answers to each prompt, in order; none to a prompt that is too long."""
        texts: list[list[str]] = [[] for _ in prompts]
        for number, prompt in enumerate(prompts):
            try:
                token_ids = self._renderer.render(prompt).token_ids.tolist()
            except PromptTooLong:
                continue
            if len(token_ids) + sampling.max_tokens <= self._max_length:
                seed = stream_seed(self._seed, self._asked)
                self._asked += 1
                self._engine.submit(str(number), token_ids, n, sampling, seed=seed)
        while self._engine.num_in_flight:
            for request in self._engine.step():
                texts[int(request.request_id)] = [
                    self._decode(answer.token_ids) for answer in request.completions
                ]
        return texts

    def _decode(self, token_ids: object) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)  # type: ignore[attr-defined]
        return text


def vllm_texts(
    model: str, *, max_length: int, dtype: str, seed: int, trust_remote_code: bool = False
) -> EngineTexts:
    """A vLLM engine for `model`.

    Args:
        model: a Hugging Face folder or hub id, or `embedded`.
        max_length: longest prompt plus answer, in tokens.
        dtype: number format of weights and activations.
        seed: of the sampler.
        trust_remote_code: run Python code that comes with the model.

    Raises:
        SettingError: the model cannot be loaded, or does not go as far as `max_length`.
    """
    facts = model_facts(model, trust_remote_code=trust_remote_code)
    if facts.context_length is not None and max_length > facts.context_length:
        raise SettingError(
            f"max_model_len={max_length}: {model} goes up to {facts.context_length} tokens; use"
            " that or less",
            "max_model_len",
        )
    tokenizer = load_tokenizer(facts.path, trust_remote_code=trust_remote_code)
    engine = VLLMEngine(
        facts.path,
        dtype=dtype,
        max_model_len=max_length,
        stop_token_ids=facts.stop_token_ids,
        seed=seed,
        trust_remote_code=trust_remote_code,
    )
    renderer = PromptRenderer(tokenizer, template="plain")
    return EngineTexts(engine, renderer, tokenizer, max_length, seed=seed)
