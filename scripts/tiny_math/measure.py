"""Measure a model on held-out sums: `python scripts/tiny_math/measure.py DIR`.

The README of the base model states these measurements. The environment itself scores the
completions.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recipe import worked
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen2ForCausalLM

from rllib_dapo.envs.arithmetic import ArithmeticEnv, sum_at

MAX_NEW_TOKENS = 64
_AT_ONCE = 1024  # completions generated in one batch


@dataclass(frozen=True, slots=True)
class Completion:
    """One generated completion.

    Attributes:
        text: its text.
        tokens: its number of tokens, EOS included.
        stopped: whether it ended with EOS.
        correct: the environment's verdict.
    """

    text: str
    tokens: int
    stopped: bool
    correct: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a model on held-out problems with at most 64 new tokens.

    Attributes:
        problems: number of problems.
        samples: number of completions sampled for each problem at temperature 1.
        accuracy: share of sampled completions that are correct.
        pass_at_k: share of problems with a correct completion among the `samples`.
        mixed: share of problems with both correct and wrong completions, which dynamic
            sampling keeps.
        truncated: share of sampled completions that were cut at the limit.
        mean_length: mean number of tokens of a sampled completion.
        length_correct: the same among correct completions.
        length_wrong: the same among wrong completions.
        greedy: share of problems solved by greedy decoding.
        careful_steps: share of correct step results when the text up to the `=` is given and
            decoding is greedy, which shows what the model is able to do.
    """

    problems: int
    samples: int
    accuracy: float
    pass_at_k: float
    mixed: float
    truncated: float
    mean_length: float
    length_correct: float
    length_wrong: float
    greedy: float
    careful_steps: float


@torch.inference_mode()
def completions(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    indices: range,
    *,
    samples: int = 1,
    greedy: bool = False,
) -> list[list[Completion]]:
    """Generate `samples` completions of each held-out problem, at T = 1 unless `greedy`.

    They are drawn with torch's global generator.
    """
    env = ArithmeticEnv(split="validation")
    sampler: Any = model  # transformers' annotations of `generate` reject its own models
    how: dict[str, Any] = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0}
    found: list[list[Completion]] = []
    block = max(_AT_ONCE // samples, 1)
    for start in range(indices.start, indices.stop, block):
        chunk = range(start, min(start + block, indices.stop))
        texts = [env.reset(options={"index": i})[0] + "\n" for i in chunk]
        prompts = tokenizer(texts, padding=True, return_tensors="pt")
        out = sampler.generate(
            **prompts,
            **how,
            num_return_sequences=samples,
            max_new_tokens=MAX_NEW_TOKENS,
        )[:, prompts["input_ids"].shape[1] :]
        for i, several in zip(chunk, out.view(len(chunk), samples, -1).tolist(), strict=True):
            found.append([_score(env, tokenizer, i, ids) for ids in several])
    return found


def _score(
    env: ArithmeticEnv, tokenizer: PreTrainedTokenizerBase, index: int, ids: list[int]
) -> Completion:
    stopped = tokenizer.eos_token_id in ids
    text_ids = ids[: ids.index(tokenizer.eos_token_id)] if stopped else ids
    text = str(tokenizer.decode(text_ids))
    env.reset(options={"index": index})
    correct = bool(env.step(text)[4]["correct"])
    return Completion(text, len(text_ids) + stopped, stopped, correct)


@torch.inference_mode()
def careful_steps(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, indices: range
) -> float:
    """Return the share of step results whose digits and line end are all the likeliest tokens."""
    rng = np.random.default_rng(0)
    correct = total = 0
    for index in indices:
        problem = sum_at(index, split="validation")
        text, _ = worked(problem, rng, slip=0.0, checks=0)
        ids = tokenizer(problem.text + "\n" + text, return_tensors="pt")["input_ids"]
        likeliest = model(input_ids=ids).logits[0].argmax(-1)
        at = len(problem.text) + 1
        for line in text.split("\n")[:-1]:
            begin, end = at + line.index("=") + 1, at + len(line) + 1
            correct += int(torch.equal(likeliest[begin - 1 : end - 1], ids[0, begin:end]))
            total += 1
            at = end
    return correct / total


def measure(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    *,
    problems: int = 512,
    samples: int = 16,
    seed: int = 0,
) -> Measured:
    """Measure a model on the held-out problems 0, 1, 2, …."""
    torch.manual_seed(seed)
    model.train(False)
    indices = range(problems)
    drawn = completions(model, tokenizer, indices, samples=samples)
    greedy = completions(model, tokenizer, indices, greedy=True)
    flat = [completion for several in drawn for completion in several]
    correct = [sum(c.correct for c in several) for several in drawn]
    return Measured(
        problems=problems,
        samples=samples,
        accuracy=float(np.mean([c.correct for c in flat])),
        pass_at_k=float(np.mean([n > 0 for n in correct])),
        mixed=float(np.mean([0 < n < samples for n in correct])),
        truncated=float(np.mean([not c.stopped for c in flat])),
        mean_length=float(np.mean([c.tokens for c in flat])),
        length_correct=float(np.mean([c.tokens for c in flat if c.correct] or [0])),
        length_wrong=float(np.mean([c.tokens for c in flat if not c.correct] or [0])),
        greedy=float(np.mean([several[0].correct for several in greedy])),
        careful_steps=careful_steps(model, tokenizer, indices),
    )


def main() -> None:
    """Print the measurements of a model folder as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--problems", type=int, default=512)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = Qwen2ForCausalLM.from_pretrained(args.model)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    measured = measure(model, tokenizer, problems=args.problems, samples=args.samples)
    sys.stdout.write(json.dumps(dataclasses.asdict(measured), indent=2) + "\n")


if __name__ == "__main__":
    main()
