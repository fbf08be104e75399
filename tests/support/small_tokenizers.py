"""Small tokenizers with the habits of trained models: BOS, EOS and chat templates."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<unk>", "<bos>", "<eos>", "<|system|>", "<|user|>", "<|assistant|>"]


def make_tokenizer(
    chat_template: str | None = None, *, bos: bool = True, eos: bool = False
) -> PreTrainedTokenizerFast:
    """One token per character, with a BOS (and an EOS) policy as trained models have."""
    characters = sorted({chr(i) for i in range(32, 127)} | set("\nπ答案"))
    vocabulary = {token: i for i, token in enumerate(SPECIAL + characters)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[0]))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.post_processor = processors.TemplateProcessing(
        single=("<bos> " if bos else "") + "$A" + (" <eos>" if eos else ""),
        special_tokens=[("<bos>", 1), ("<eos>", 2)],
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=SPECIAL[1],
        eos_token=SPECIAL[2],
        unk_token=SPECIAL[0],
        additional_special_tokens=SPECIAL[3:],
    )
    tokenizer.chat_template = chat_template
    return tokenizer
