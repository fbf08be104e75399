"""Milliseconds of one weight sync: by reference, from the object store, through shared memory.

    python benchmarks/weight_sync.py [--hidden 768 --layers 12] [--syncs 5]

Two models, the embedded one and a random Qwen2 of about 100 million parameters. All in one run
on one machine, so that the ratios mean something where others' work slows everything down:

    by reference     learner and engine in one process; the engine reads the learner's tensors
    object store     arrays copied, put into Ray's store, and read there
    shared memory    what a tensor-parallel engine adds to that: one copy into a segment
    checks           checksums on both sides, and log-probabilities of a fixed text
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rllib_dapo.algorithm.weight_sync.learners import probe_text
from rllib_dapo.algorithm.weight_sync.source import LearnerWeights
from rllib_dapo.model.facts import model_path
from rllib_dapo.rollout.engine.checksums import checksum
from rllib_dapo.rollout.engine.shared_tensors import open_shared_tensors, shared_tensors
from rllib_dapo.rollout.engine.vllm import VLLMEngine
from rllib_dapo.types import CAUSAL_LM_PREFIX


def random_model(folder: Path, hidden: int, layers: int) -> str:
    """Save a Qwen2 with tied embeddings."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=32_000,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return str(folder)


def milliseconds(function: Callable[[], object], times: int) -> float:
    """Median after one call that is not counted."""
    taken = []
    for number in range(times + 1):
        start = time.perf_counter()
        function()
        if number:
            taken.append(1e3 * (time.perf_counter() - start))
    return statistics.median(taken)


def measure(path: str, syncs: int, skip_tokenizer: bool) -> dict[str, float]:
    """Median milliseconds of each way."""
    import ray
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    source = LearnerWeights(model, None)
    settings: dict[str, Any] = {"skip_tokenizer_init": True} if skip_tokenizer else {}
    engine = VLLMEngine(
        path, dtype="float32", max_model_len=256, stop_token_ids=[1], seed=0, engine_kwargs=settings
    )
    text = probe_text(model.config.vocab_size, 200)
    version = 0

    def load(weights: Any, checksums: dict[str, int] | None = None) -> None:
        nonlocal version
        version += 1
        engine.load_weights(weights, version, checksums)

    def copied() -> dict[str, Any]:
        return {f"{CAUSAL_LM_PREFIX}{n}": t.clone().numpy() for n, t in source}

    def through_segment() -> None:
        with shared_tensors(iter(source)) as segment:
            load(dict(open_shared_tensors(segment)))

    def checked() -> None:
        load(dict(source), {name: checksum(tensor) for name, tensor in source})
        engine.prompt_logprobs(text)
        with torch.no_grad():
            model(input_ids=torch.tensor([text])).logits.log_softmax(-1)

    result = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "by reference": milliseconds(lambda: load(dict(source)), syncs),
        "object store": milliseconds(lambda: load(ray.get(ray.put(copied()))), syncs),
        "shared memory": milliseconds(through_segment, syncs),
        "by reference, checked": milliseconds(checked, syncs),
    }
    engine.shutdown()
    return result


def main() -> None:
    """Measure one model per process: vLLM starts only once in each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--syncs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    import ray

    torch.set_num_threads(options.threads)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    remote = ray.remote(max_calls=1, num_cpus=1)(measure)
    with tempfile.TemporaryDirectory() as folder:
        large = random_model(Path(folder), options.hidden, options.layers)
        for name, path in (("embedded", model_path("embedded")), ("Qwen2", large)):
            row = ray.get(remote.remote(path, options.syncs, name != "embedded"))
            size = row.pop("parameters")
            base = row["by reference"]
            print(f"{name}: {size / 1e6:.1f}M parameters")
            for way, ms in row.items():
                print(f"  {way:22s} {ms:8.1f} ms   {ms / base:5.2f}x")
    ray.shutdown()


if __name__ == "__main__":
    main()
