"""Random models of three architectures with a few thousand parameters each."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2Config,
)

from rllib_dapo.model.causal_lm import load_causal_lm
from rllib_dapo.model.lora import LoRALayout, add_lora

KINDS = ("qwen2", "llama", "gpt2")
EOS = 1
IDS = torch.arange(3, 27).reshape(2, 12)


def tiny_config(kind: str, *, layers: int = 2, tied: bool | None = None) -> PreTrainedConfig:
    """A configuration.

    - `qwen2`: tied embeddings, biases in the attention, one key-value head for two.
    - `llama`: an output head of its own, no biases.
    - `gpt2`: tied embeddings, weights stored as [in, out] (`Conv1D`), biases everywhere.

    `tied` changes whether embeddings and head are one tensor; not for `gpt2`.
    """
    if kind == "gpt2":
        return GPT2Config(
            vocab_size=99,
            n_embd=32,
            n_layer=layers,
            n_head=2,
            n_positions=64,
            initializer_range=0.3,
            bos_token_id=EOS,
            eos_token_id=EOS,
        )
    return {"qwen2": Qwen2Config, "llama": LlamaConfig}[kind](
        vocab_size=99,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.3,  # distributions far from uniform
        tie_word_embeddings=kind == "qwen2" if tied is None else tied,
        eos_token_id=EOS,
        pad_token_id=0,
    )


def save(kind: str, folder: Path, *, layers: int = 2, seed: int = 0) -> Path:
    """A random model of that kind in `folder`."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(kind, layers=layers))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # zeros would hide a forgotten bias
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return folder


def load(folder: Path, *, checkpointing: bool = False, attention: str | None = None) -> Any:
    """The model in `folder` as the learner loads it, with another attention if asked for."""
    model: Any = load_causal_lm(
        str(folder), trust_remote_code=False, gradient_checkpointing=checkpointing
    )
    if attention is not None:
        model.set_attn_implementation(attention)
    return model


def adapted(folder: Path, *, targets: Any = "all-linear", **options: Any) -> tuple[Any, LoRALayout]:
    """The same with adapters of rank 3 that are scaled by 2."""
    model = load(folder, **options)
    return model, add_lora(model, rank=3, alpha=6, target_modules=targets, seed=0)


def logits(model: Any) -> torch.Tensor:
    return model(input_ids=IDS, use_cache=False).logits


def bytes_kept(model: Any, context: AbstractContextManager[Any] | None = None) -> int:
    """Bytes that a forward pass leaves allocated (in its context) for the backward pass."""
    logits(model)  # what is allocated once
    with (
        context or nullcontext(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as memory,
    ):
        hidden = model.base_model(input_ids=IDS, use_cache=False).last_hidden_state
    assert hidden.requires_grad
    return sum(event.self_cpu_memory_usage for event in memory.key_averages())


def train(model: Any, optimizer: Any = None, *, steps: int = 4) -> None:
    """Some steps that move the logits by about one."""
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = optimizer or torch.optim.AdamW(params, lr=0.03)
    for _ in range(steps):
        optimizer.zero_grad()
        logits(model).log_softmax(-1)[..., 5].sum().neg().backward()
        optimizer.step()
