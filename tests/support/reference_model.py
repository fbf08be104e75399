"""Models computed plainly with transformers, to compare engine and learner with."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from strategies import make_batch
from tiny_models import EOS, tiny_config
from transformers import AutoModelForCausalLM

from rllib_dapo.model.facts import model_path
from rllib_dapo.types import TokenBatch

LENGTHS = (9, 1, 4, 0, 7, 2, 5)  # of the completions of `uneven_batch`; one is empty


@cache
def embedded_model() -> Any:
    """The embedded model in transformers; do not change it, load another one for that."""
    return fresh_embedded_model()


def fresh_embedded_model() -> Any:
    return AutoModelForCausalLM.from_pretrained(model_path("embedded"), dtype=torch.float32).eval()


def save_tiny_model(folder: Path, *, seed: int = 0, tied: bool = True, layers: int = 2) -> Path:
    """A random Qwen2 whose distributions are far from uniform, in `folder`."""
    torch.manual_seed(seed)
    config = tiny_config("qwen2", layers=layers, tied=tied)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(model_path("embedded")) / name, folder / name)
    return folder


@torch.no_grad()
def answer_logprobs(
    model: Any,
    prompt: Sequence[int],
    answer: Sequence[int],
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> np.ndarray[Any, Any]:
    """Log-probability of each answer token under the distribution it is sampled from."""
    ids = torch.tensor([[*map(int, prompt), *map(int, answer)]])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].double() / temperature
    if top_p < 1.0:
        probs, order = logits.softmax(-1).sort(dim=-1, descending=True)
        # A token is kept if the more probable ones together have less than top_p.
        dropped = probs.cumsum(-1) - probs >= top_p
        logits = logits.masked_fill(dropped.scatter(-1, order, dropped), -torch.inf)
    table = logits.log_softmax(-1)
    return table.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()


def random_rows(
    lengths: Sequence[int], *, seed: int = 0, eos: bool = True
) -> list[tuple[list[int], list[int]]]:
    """(prompt, completion) rows of random tokens; a completion ends with EOS if `eos`."""
    rng = np.random.default_rng(seed)
    rows = []
    for length in lengths:
        prompt = rng.integers(3, 99, rng.integers(2, 7)).tolist()
        completion = rng.integers(3, 99, length).tolist()
        if eos and completion:
            completion[-1] = EOS
        rows.append((prompt, completion))
    return rows


def batch_of(
    model: Any,
    rows: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    temperature: float = 1.0,
    noise: float = 0.3,
    seed: int = 0,
    **columns: Any,
) -> TokenBatch:
    """A batch whose old log-probabilities are the model's own plus normal noise.

    The noise puts some ratios on either side of the clip range. Advantages are random
    unless given.
    """
    rng = np.random.default_rng(seed)
    old = [
        (answer_logprobs(model, p, r, temperature=temperature) + rng.normal(0, noise, len(r)))
        if len(r)
        else []
        for p, r in rows
    ]
    columns.setdefault("advantages", rng.normal(0, 1, len(rows)).tolist())
    return make_batch(rows, old_logprobs=old, **columns)


def uneven_batch(model: Any) -> TokenBatch:
    """Seven answers, the fifth of them masked, with ratios on both sides of the clip."""
    mask = [True, True, True, True, False, True, True]
    return batch_of(model, random_rows(LENGTHS), loss_mask=mask)
