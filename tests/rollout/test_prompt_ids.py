"""Prompt ids against `apply_chat_template`, for any text, on a byte-level BPE tokenizer."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from rllib_dapo.data.prompts import TEMPLATES, PromptRenderer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADERS = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}<|im_end|>\n\n"
    "{{ m['content'] | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_end|>\n\n{% endif %}"
)


BOS, EOS = "<s>", "<|im_end|>"


@cache
def bpe() -> PreTrainedTokenizerFast:
    """Merges across spaces and newlines, and a BOS of its own that templates must not double."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([*TEMPLATES.values(), "Answer: 34\n\n", "assistant user"], trainer)
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", core.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=BOS, eos_token=EOS, pad_token=EOS
    )


def with_template(template: str | None) -> PreTrainedTokenizerFast:
    tokenizer = bpe()
    tokenizer.chat_template = template
    return tokenizer


texts = st.text(max_size=30) | st.sampled_from(
    [
        "",
        " \n",
        "<s>",
        "<|im_end|>\n",
        "{problem}",
        "½ × ３４",
        "答案",
        "\\frac{1}{2}",
        "Answer: 34\n",
    ]
)


@pytest.mark.parametrize("chat_template", [CHATML, HEADERS])
@examples(80)
@given(
    problem=texts,
    template=st.sampled_from([*TEMPLATES, "Q: {problem}", "{problem}"]),
    system=st.none() | texts,
    shots=st.lists(st.fixed_dictionaries({"problem": texts, "answer": texts}), max_size=2),
    own_system=st.none() | texts,
)
def test_ids_are_those_of_the_chat_template(
    chat_template: str,
    problem: str,
    template: str,
    system: str | None,
    shots: list[dict[str, str]],
    own_system: str | None,
) -> None:
    tokenizer = with_template(chat_template)
    renderer = PromptRenderer(tokenizer, template=template, system=system, few_shot=shots)
    wording = TEMPLATES.get(template, template)

    def expected(asked: str, first: str | None) -> Any:
        messages = [] if first is None else [{"role": "system", "content": first}]
        for shot in shots:
            posed = wording.replace("{problem}", shot["problem"], 1)
            messages.append({"role": "user", "content": posed})
            messages.append({"role": "assistant", "content": shot["answer"]})
        messages.append({"role": "user", "content": asked})
        return tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )

    prompt = renderer.render(problem)
    assert prompt.token_ids.tolist() == expected(wording.replace("{problem}", problem, 1), system)
    bos = tokenizer.bos_token_id
    assert (prompt.token_ids[0] == bos) == (chat_template == HEADERS)
    assert prompt.token_ids[1] != bos or problem.startswith("<s>")
    # Chat messages keep their wording; the setting's system message replaces theirs.
    chat = [{"role": "user", "content": problem}]
    if own_system is not None:
        chat.insert(0, {"role": "system", "content": own_system})
    ids = renderer.render(chat).token_ids.tolist()
    assert ids == expected(problem, own_system if system is None else system)
    assert renderer.lengths([problem, chat]).tolist() == [len(prompt.token_ids), len(ids)]


@examples(80)
@given(problem=texts, template=st.sampled_from([*TEMPLATES, "{problem}"]))
def test_base_models_get_what_their_tokenizer_makes(problem: str, template: str) -> None:
    tokenizer = with_template(None)
    renderer = PromptRenderer(tokenizer, template=template)
    text = TEMPLATES.get(template, template).replace("{problem}", problem, 1)
    prompt = renderer.render(problem)
    ids = tokenizer.encode(text)
    if ids[:2] == [tokenizer.bos_token_id] * 2:
        ids = ids[1:]  # the problem itself begins with a BOS
    assert prompt.token_ids.tolist() == ids
    assert prompt.text == text
    assert renderer.lengths([problem]).tolist() == [len(ids)]
