"""Make the embedded base model: `python scripts/tiny_math/make.py --out DIR`.

A Qwen2 of under a million parameters with one token per character is trained in two
stages: first on correct completions only, to learn the arithmetic, then on the mixture of
`recipe.py` that it finally imitates. The same seed on the same machine with the same number
of threads gives the same bytes.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from measure import MAX_NEW_TOKENS, Measured, measure
from recipe import BASE, CLEAN, Mixture, example
from transformers import (
    GenerationConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
CHARACTERS = "\n" + "".join(chr(c) for c in range(ord(" "), ord("~") + 1))
ROW = 256  # tokens in a packed row: several examples end to end
ROWS = 16  # rows in an optimizer step
_IGNORE = -100  # cross_entropy's own mark for "no target here"

log = logging.getLogger("tiny_math")


@dataclass(frozen=True, slots=True)
class Stage:
    """A number of optimizer steps on one mixture."""

    mixture: Mixture
    steps: int
    lr: float
    warmup: int = 100

    def lr_at(self, step: int) -> float:
        """Return the learning rate of step 0, 1, …: linear warm-up, then half a cosine to 5%."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = (step - self.warmup) / max(self.steps - self.warmup, 1)
        return self.lr * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


STAGES = (Stage(CLEAN, 2500, 2e-3), Stage(BASE, 1000, 1e-3))


@dataclass(frozen=True, slots=True)
class Rows:
    """A packed batch of R rows of L tokens.

    Attributes:
        ids: int64[R, L].
        targets: int64[R, L], the next token where it belongs to a completion, else -100.
        positions: int64[R, L], which start at 0 in each example.
        mask: bool[R, 1, L, L], True where a token may attend: backwards within its example.
    """

    ids: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor


def build_tokenizer() -> Qwen2Tokenizer:
    """Make a tokenizer with one token per character of printable ASCII and newline.

    It has no BOS token and no chat template. transformers 5 gives every `qwen2` folder a
    Qwen2Tokenizer, whatever the folder asks for, so this is one: byte-level BPE without any
    merge. Its vocabulary writes the space as `Ġ` and the newline as `Ċ`.
    """
    spelled = CHARACTERS.replace("\n", "Ċ").replace(" ", "Ġ")
    vocab = {token: i for i, token in enumerate([PAD, EOS, UNK, *spelled])}
    tokenizer = Qwen2Tokenizer(
        vocab=vocab,
        merges=[],
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        model_max_length=512,
        padding_side="left",
    )
    tokenizer.clean_up_tokenization_spaces = False
    return tokenizer


def build_model(vocab_size: int, pad: int, eos: int) -> Qwen2ForCausalLM:
    """Make the untrained network."""
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        pad_token_id=pad,
        eos_token_id=eos,
        dtype="float32",
        initializer_range=0.04,  # a network this narrow learns faster than with 0.02
        architectures=["Qwen2ForCausalLM"],
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(pad_token_id=pad, eos_token_id=eos)
    return model


def rows(mixture: Mixture, seed: int) -> Iterator[Rows]:
    """Yield packed batches without end, from examples 0, 1, 2, … of the mixture."""
    ids_of = {token: i for i, token in enumerate([PAD, EOS, UNK, *CHARACTERS])}
    index = 0
    carried: tuple[list[int], int] | None = None
    while True:
        ids = torch.full((ROWS, ROW), ids_of[PAD])
        targets = torch.full((ROWS, ROW), _IGNORE)
        positions = torch.zeros((ROWS, ROW), dtype=torch.int64)
        owner = torch.full((ROWS, ROW), -1)
        for row in range(ROWS):
            at = 0
            while True:
                if carried is None:
                    drawn = example(index, seed, mixture)
                    index += 1
                    text = [ids_of[c] for c in drawn.prompt + drawn.completion] + [ids_of[EOS]]
                    carried = text, len(drawn.prompt)
                text, prompt = carried
                end = at + len(text)
                if end > ROW:
                    break
                ids[row, at:end] = torch.tensor(text)
                targets[row, at + prompt - 1 : end - 1] = torch.tensor(text[prompt:])
                positions[row, at:end] = torch.arange(len(text))
                owner[row, at:end] = at
                at, carried = end, None
        same = owner[:, :, None] == owner[:, None, :]
        yield Rows(ids, targets, positions, same.tril()[:, None])


def train(model: Qwen2ForCausalLM, stages: tuple[Stage, ...], seed: int) -> float:
    """Train `model` in place, stage after stage; return the seconds it took."""
    model.train(True)
    began = time.monotonic()
    for number, stage in enumerate(stages, start=1):
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=stage.lr, betas=(0.9, 0.98), weight_decay=0.01
        )
        batches = rows(stage.mixture, seed + number)
        for step in range(stage.steps):
            batch = next(batches)
            for group in optimizer.param_groups:
                group["lr"] = stage.lr_at(step)
            logits = model(
                input_ids=batch.ids,
                position_ids=batch.positions,
                attention_mask=batch.mask,
                use_cache=False,
            ).logits
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), batch.targets.flatten(), ignore_index=_IGNORE
            )
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 100 == 0 or step == stage.steps - 1:
                log.info(
                    "stage %d step %d/%d loss %.4f, %.0f s",
                    number,
                    step,
                    stage.steps,
                    loss.item(),
                    time.monotonic() - began,
                )
    model.train(False)
    return time.monotonic() - began


def readme(seed: int, threads: int, stages: tuple[Stage, ...], seconds: float, m: Measured) -> str:
    """Return the README of the model folder, with the measurements."""
    taught = "\n".join(
        f"{number}. {stage.steps} steps of {ROWS} × {ROW} tokens, peak learning rate "
        f"{stage.lr:g}: `{stage.mixture}`"
        for number, stage in enumerate(stages, start=1)
    )
    return f"""\
# tiny_math: the embedded base model

A Qwen2 with one token per character (printable ASCII and newline) that answers sums such
as `12+35-7=?`. It is a *base* model: it is able to work out a sum nearly without error, but
it does so only sometimes. Reinforcement learning is to change that.

This command makes the folder and also writes this file:

    python scripts/tiny_math/make.py --out rllib_dapo/model/embedded --seed {seed}

The same seed on the same machine with the same number of threads ({threads}) gives the
same bytes; training took {seconds / 60:.0f} minutes. Only problems of the split `train`
were used. The prompt is the problem and a newline, and the loss is on the completion alone.

{taught}

`scripts/tiny_math/recipe.py` explains the fields of a mixture and has examples.

## Measured on {m.problems} held-out problems (split `validation`)

At most {MAX_NEW_TOKENS} new tokens, {m.samples} completions each at temperature 1.
`python scripts/tiny_math/measure.py DIR` measures any model folder.

| | |
|---|---|
| accuracy by sampling at temperature 1 | {m.accuracy:.1%} |
| pass@{m.samples} | {m.pass_at_k:.1%} |
| problems with correct and wrong completions | {m.mixed:.1%} |
| accuracy of greedy decoding | {m.greedy:.1%} |
| correct step results when the text before them is given | {m.careful_steps:.2%} |
| completions cut at the limit | {m.truncated:.1%} |
| mean length (correct completions, wrong completions) | {m.mean_length:.1f} \
({m.length_correct:.1f}, {m.length_wrong:.1f}) tokens |
"""


def main() -> None:
    """Parse the command line, train, save, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, help="at most this many steps per stage, for trials")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    tokenizer = build_tokenizer()
    vocab = tokenizer.get_vocab()
    model = build_model(len(vocab), vocab[PAD], vocab[EOS])
    log.info("%d parameters", model.num_parameters())
    stages: tuple[Stage, ...] = STAGES
    if args.steps is not None:
        stages = tuple(Stage(s.mixture, min(s.steps, args.steps), s.lr) for s in STAGES)
    seconds = train(model, stages, args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    (args.out / "model.safetensors").chmod(
        0o644
    )  # safetensors makes it readable for its owner only
    log.info("saved to %s; measuring", args.out)
    measured = measure(model, tokenizer)
    text = readme(args.seed, args.threads, stages, seconds, measured)
    (args.out / "README.md").write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
