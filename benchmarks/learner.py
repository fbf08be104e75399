"""Measures how fast the learner is, and how much memory its log-probabilities take.

    python benchmarks/learner.py --out docs/images       # both parts, about ten minutes
    python benchmarks/learner.py --part speed --repeats 9
    python benchmarks/learner.py --part memory

Speed: every layout of the learner, and the variants it is compared with, make one optimizer
step on the same batch of completions with long-tailed lengths. All variants take turns in one
process, so that other work on the machine slows all of them; compare the ratios, not the seconds.

    padded            rows padded to the longest of their micro-batch, sorted by length
    padded, unsorted  the same in sampling order, with a fixed number of rows at a time (a
                      fixed micro-batch size, the usual setting)
    packed            no padding
    packed, shared    each prompt only once for all its completions
    bare              forward and backward of the packed micro-batches with the simplest
                      loss: no advantages, clip, metrics, gradient norm or optimizer

Memory: the script computes log-probabilities of many tokens over a large vocabulary, forward
and backward, each way in a process of its own, and measures how far the peak of memory rises
above what the process held before. The plain way is measured at sizes that fit into memory; its
figure for the full size follows in proportion.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch

HIDDEN = 64  # for the memory part; it is small, so that the vocabulary decides


# -- Speed ------------------------------------------------------------------------------------


def save_model(folder: Path, *, hidden: int, layers: int) -> Path:
    """Save a random Qwen2 with the tokenizer of the embedded model."""
    import shutil

    from transformers import Qwen2Config, Qwen2ForCausalLM

    from rllib_dapo.model.facts import model_path

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=8192,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 128),
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(model_path("embedded")) / name, folder / name)
    return folder


def long_tailed_batch(groups: int, size: int, prompt: int, rng: np.random.Generator) -> Any:
    """Make groups of completions; lengths are log-normal (median 55), 3% are cut at 1024."""
    from rllib_dapo.types import TokenBatch

    rows = groups * size
    lengths = np.clip(rng.lognormal(4.0, 1.0, rows).astype(np.int64), 4, 1024)
    lengths[rng.random(rows) < 0.03] = 1024
    prompts = [
        rng.integers(3, 99, int(n)) for n in rng.integers(prompt // 2, prompt * 3 // 2, groups)
    ]
    owners = np.repeat(np.arange(groups), size)
    ids = [
        np.concatenate([prompts[g], rng.integers(3, 99, n)])
        for g, n in zip(owners, lengths, strict=True)
    ]
    tokens = int(lengths.sum())
    return TokenBatch(
        token_ids=np.concatenate(ids).astype(np.int64),
        prompt_lengths=np.array([len(prompts[g]) for g in owners], np.int64),
        completion_lengths=lengths,
        old_logprobs=np.full(tokens, -9.0, np.float32),
        advantages=rng.choice(np.array([-1.0, 1.0], np.float32), rows),
        loss_mask=np.ones(rows, np.bool_),
        groups=owners,
        weights_versions=np.zeros(tokens, np.int64),
        importance_weights=np.ones(tokens, np.float32),
        reference_logprobs=np.zeros(tokens, np.float32),
    )


class Unsorted:
    """A layout of padded micro-batches of a fixed number of rows, in sampling order."""

    def __init__(self, layout: Any, rows: int) -> None:
        self._layout, self._rows = layout, rows
        self.pad_id = layout.pad_id

    def split(self, batch: Any) -> list[Any]:
        """Return the row numbers of each micro-batch."""
        return np.array_split(np.arange(len(batch)), -(-len(batch) // self._rows))

    def tensors(self, rows: Any, device: Any) -> Any:
        """Return the tensors that the padded layout makes."""
        return self._layout.tensors(rows, device)


def make_step(
    model: Path, batch: Any, budget: int, **settings: Any
) -> tuple[Any, Callable[[], None]]:
    """Make a learner, and a function that makes one optimizer step with it on the batch."""
    from rllib_dapo import DAPOConfig
    from rllib_dapo.envs.make import make_env
    from rllib_dapo.learner.batch_io import to_multi_agent_batch

    env = "rllib_dapo/Arithmetic-v0"
    config = (
        DAPOConfig()
        .environment(env)
        .training(
            model=str(model),
            lr=1e-6,
            max_tokens_per_microbatch=budget,
            max_completion_length=1024,
            max_prompt_length=1024,
            **settings,
        )
        .debugging(seed=0)
    )
    learner = config.build_learner(env=make_env(env))
    wrapped = to_multi_agent_batch(batch)
    return learner, lambda: learner.update(batch=wrapped, num_total_minibatches=1, num_epochs=1)


def bare_step(learner: Any, batch: Any) -> Callable[[], None]:
    """Make a step of the simplest loss on the learner's own packed micro-batches and model."""
    from ray.rllib.core import DEFAULT_MODULE_ID

    from rllib_dapo.model.batching import select

    model = learner.module[DEFAULT_MODULE_ID].causal_lm
    layout = learner._layout
    parts = [layout.tensors(select(batch, rows), "cpu") for rows in layout.split(batch)]

    def step() -> None:
        model.zero_grad(set_to_none=True)
        for part in parts:
            hidden = model.base_model(**part["model_inputs"]).last_hidden_state[0]
            logits = model.get_output_embeddings()(hidden[part["predictors"]])
            torch.nn.functional.cross_entropy(logits, part["targets"], reduction="sum").backward()

    return step


def measure_speed(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the seconds of one step of each variant; the variants take turns."""
    torch.set_num_threads(options.threads)
    rng = np.random.default_rng(0)
    batch = long_tailed_batch(options.groups, options.group_size, options.prompt, rng)
    with tempfile.TemporaryDirectory() as folder:
        model = save_model(Path(folder), hidden=options.hidden, layers=options.layers)
        shared, shared_step = make_step(model, batch, options.budget)
        packed, packed_step = make_step(model, batch, options.budget, share_prompts=False)
        padded, padded_step = make_step(model, batch, options.budget, packing=False)
        unsorted, unsorted_step = make_step(model, batch, options.budget, packing=False)
    # The peak is the same: this many rows of the longest length fill the budget.
    unsorted._layout = Unsorted(padded._layout, max(1, options.budget // int(batch.lengths.max())))
    variants = {
        "packed, shared": shared_step,
        "packed": packed_step,
        "padded": padded_step,
        "padded, unsorted": unsorted_step,
        "bare": bare_step(packed, batch),
        "bare, shared": bare_step(shared, batch),
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for repeat in range(options.repeats + 1):
        for name, step in variants.items():
            started = time.perf_counter()
            step()
            if repeat:  # the first one warms up
                seconds[name].append(time.perf_counter() - started)
    tokens = int(batch.lengths.sum())
    return {
        "parameters": sum(p.numel() for p in packed._params.values()),
        "rows": len(batch),
        "tokens": tokens,
        "lengths": {
            "median": float(np.median(batch.lengths)),
            "mean": float(batch.lengths.mean()),
            "max": int(batch.lengths.max()),
        },
        "seconds": seconds,
        "tokens_per_s": {name: tokens / statistics.median(s) for name, s in seconds.items()},
    }


def ratio(seconds: dict[str, list[float]], slow: str, fast: str) -> tuple[float, float, float]:
    """Return the median, smallest and largest ratio of two variants' times, turn by turn."""
    ratios = [a / b for a, b in zip(seconds[slow], seconds[fast], strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


# -- Memory -------------------------------------------------------------------------------------


class Peak:
    """Measures how far the resident memory of this process rises in the context, in MiB."""

    def __enter__(self) -> Peak:
        self._before = self._highest = self._resident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.rise = self._highest - self._before

    @staticmethod
    def _resident() -> float:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            self._highest = max(self._highest, self._resident())


def logprobs_once(how: str, tokens: int, vocabulary: int) -> None:
    """Run forward and backward once, and print by how many MiB the peak rose."""
    from rllib_dapo.losses.logprobs import token_logprobs_and_entropy, tokens_at_once

    torch.manual_seed(0)
    hidden = torch.randn(tokens, HIDDEN, requires_grad=True)
    weight = torch.randn(vocabulary, HIDDEN).mul_(0.1).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,))
    warm = torch.nn.functional.linear(hidden[:64], weight[:64])  # starts the threads
    warm.sum().backward()
    hidden.grad = weight.grad = None
    with Peak() as peak:
        if how == "chunked":
            chunk = tokens_at_once(vocabulary)
            logprobs, _ = token_logprobs_and_entropy(hidden, weight, targets, chunk_tokens=chunk)
        else:
            table = torch.nn.functional.linear(hidden, weight).log_softmax(-1)
            logprobs = table.gather(1, targets[:, None])[:, 0]
        logprobs.sum().backward()
    print(peak.rise)


def measure_memory(options: argparse.Namespace) -> dict[str, Any]:
    """Measure by how many MiB the peak rises; each way and size has its own process."""
    cases = [("chunked", options.tokens), *(("plain", n) for n in (500, 1000, 2000))]
    rises = {}
    for how, tokens in cases:
        command = [sys.executable, __file__, "--case", how, "--tokens", str(tokens)]
        command += ["--vocabulary", str(options.vocabulary)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rises[f"{how} {tokens}"] = float(done.stdout.split()[-1])
    per_token = (rises["plain 2000"] - rises["plain 500"]) / 1500
    return {
        "vocabulary": options.vocabulary,
        "rise_mib": rises,
        "plain_mib_per_token": per_token,
        "plain_mib_in_proportion": per_token * options.tokens,
        "share": rises[f"chunked {options.tokens}"] / (per_token * options.tokens),
    }


# -- Both -----------------------------------------------------------------------------------------


def report_speed(result: dict[str, Any]) -> None:
    """Print the table and the ratios."""
    lengths = result["lengths"]
    print(
        f"\n{result['parameters'] / 1e6:.1f}M parameters, {result['rows']} rows, "
        f"{result['tokens']} tokens; median length {lengths['median']:.0f}, mean "
        f"{lengths['mean']:.0f}, longest {lengths['max']}\n"
    )
    print("| variant | tokens/s (median) | s, smallest to largest |\n| --- | --- | --- |")
    for name, seconds in result["seconds"].items():
        spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
        print(f"| {name} | {result['tokens_per_s'][name]:.0f} | {spread} |")
    print()
    for slow, fast, what in (
        ("padded, unsorted", "packed", "packed against padded, unsorted"),
        ("padded", "packed", "packed against padded"),
        ("packed", "packed, shared", "shared prompts against packed"),
        ("bare", "packed", "packed against bare"),
        ("bare, shared", "packed, shared", "shared prompts against bare with shared prompts"),
    ):
        median, low, high = ratio(result["seconds"], slow, fast)
        print(f"{what}: {median:.2f} times the speed ({low:.2f} to {high:.2f})")


def draw(speed: dict[str, Any], path: Path) -> None:
    """Draw a bar for each variant, with the spread of its repeats."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = sorted(speed["seconds"], key=speed["tokens_per_s"].__getitem__)
    middle = [speed["tokens_per_s"][name] for name in names]
    spread = [
        [
            m - speed["tokens"] / max(speed["seconds"][n])
            for n, m in zip(names, middle, strict=True)
        ],
        [
            speed["tokens"] / min(speed["seconds"][n]) - m
            for n, m in zip(names, middle, strict=True)
        ],
    ]
    figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
    colours = ["#9aa5b1" if name.startswith("bare") else "#2a6f97" for name in names]
    bars = axes.barh(names, middle, xerr=spread, color=colours, capsize=3)
    axes.bar_label(bars, [f"{value:.0f}" for value in middle], padding=8)
    axes.set_xlim(0, max(middle) * 1.12)
    axes.set_xlabel("tokens per second, one thread; grey: model and plainest loss alone")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure and print; with `--out`, also write JSON and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=["speed", "memory", "both"], default="both")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--groups", type=int, default=12)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=48, help="mean prompt length, tokens")
    parser.add_argument("--budget", type=int, default=16384, help="max_tokens_per_microbatch")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--out", type=Path, help="folder for learner.json and learner.png")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        logprobs_once(options.case, options.tokens, options.vocabulary)
        return
    result: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {options.threads} threads",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    if options.part != "memory":
        result["speed"] = measure_speed(options)
        report_speed(result["speed"])
    if options.part != "speed":
        result["memory"] = memory = measure_memory(options)
        print(json.dumps(memory, indent=1))
    if options.out:
        text = json.dumps(result, indent=1) + "\n"
        (options.out / "learner.json").write_text(text, encoding="utf-8")
        if "speed" in result:
            draw(result["speed"], options.out / "learner.png")


if __name__ == "__main__":
    main()
