"""A language model that completes texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rllib_dapo.data.chat_template import todays_date
from rllib_dapo.data.prompts import PromptRenderer, PromptTooLong
from rllib_dapo.data.stops import Stops
from rllib_dapo.errors import SettingError
from rllib_dapo.model.facts import load_tokenizer, model_facts
from rllib_dapo.rollout.engine.base import InferenceEngine, Sampling, stream_seed
from rllib_dapo.rollout.engine.vllm import VLLMEngine


class TextEngine(Protocol):
    """What the transformation needs from a language model."""

    def generate(self, prompts: Sequence[str], n: int, sampling: Sampling) -> list[list[str]]:
        """`n` completions of each prompt, in order; none for a prompt that is too long."""
        ...


class EngineTexts:
    """A `TextEngine` over an inference engine and its tokenizer.

    Args:
        engine: completes token ids.
        renderer: makes token ids from a user's text, with the chat template if there is one.
        tokenizer: makes texts from the completions.
        max_length: the longest prompt and completion together, in tokens.
        seed: the seed of the random streams.
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
        self._submitted = 0

    def generate(self, prompts: Sequence[str], n: int, sampling: Sampling) -> list[list[str]]:
        """`n` completions of each prompt, in order; none for a prompt that is too long."""
        texts: list[list[str]] = [[] for _ in prompts]
        for number, prompt in enumerate(prompts):
            try:
                token_ids = self._renderer.render(prompt).token_ids.tolist()
            except PromptTooLong:
                continue
            if len(token_ids) + sampling.max_tokens <= self._max_length:
                seed = stream_seed(self._seed, self._submitted)
                self._submitted += 1
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
    """Load `model` into a vLLM engine.

    Args:
        model: a Hugging Face folder or hub id, or `embedded`.
        max_length: the longest prompt and completion together, in tokens.
        dtype: the number format of weights and activations.
        seed: the seed of the sampling.
        trust_remote_code: run Python code that comes with the model.

    Raises:
        SettingError: the model cannot be loaded, or its context is shorter than `max_length`.
    """
    facts = model_facts(model, trust_remote_code=trust_remote_code)
    if facts.context_length is not None and max_length > facts.context_length:
        raise SettingError(
            f"max_model_len={max_length}: {model} takes at most {facts.context_length} tokens;"
            " use that or less",
            "max_model_len",
        )
    tokenizer = load_tokenizer(facts.path, trust_remote_code=trust_remote_code)
    renderer = PromptRenderer(
        tokenizer, template="plain", chat_template_kwargs=todays_date(tokenizer)
    )
    stops = Stops.of_model(model, renderer, trust_remote_code=trust_remote_code)
    engine = VLLMEngine(
        facts.path,
        dtype=dtype,
        max_model_len=max_length,
        stop_token_ids=stops.token_ids,
        seed=seed,
        trust_remote_code=trust_remote_code,
    )
    return EngineTexts(engine, renderer, tokenizer, max_length, seed=seed)
