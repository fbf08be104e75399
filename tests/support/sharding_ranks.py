"""What `test_sharding` runs: in one process with a whole model, in two with half of it each."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from reference_model import random_rows
from torch import distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM

from rllib_dapo.errors import TrainingError
from rllib_dapo.losses.logprobs import token_logprobs_and_entropy
from rllib_dapo.model.sharded_state import (
    full_optimizer_state,
    full_state,
    load_full_optimizer_state,
    load_full_state,
)
from rllib_dapo.model.sharding import (
    clip_gradient_norm,
    run_as_forward,
    shard_causal_lm,
)

LIMIT = 0.5  # below the gradients' norms: clipping is active
STEPS = 5
# Of each step: the rows of either rank. Rank 1 has fewer, none, or more of them.
SHARES = [([9, 3, 4], [2]), ([5, 1], []), ([1], [7, 3, 2]), ([6, 2], [4, 4]), ([3], [8])]
TOKENS = [sum(sum(share) for share in shares) for shares in SHARES]
MODELS = {"tied": True, "untied": False}


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def hollow(folder: Path) -> Any:
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(folder)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def adamw(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)


def loss_of(model: Any, row: tuple[list[int], list[int]], weight: float) -> torch.Tensor:
    """Minus the weighted sum of an answer's log-probabilities, as in the RLModule."""
    prompt, answer = row
    ids = torch.tensor([prompt + answer])

    def logprobs() -> dict[str, torch.Tensor]:
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
        head = model.get_output_embeddings().weight
        predictors = hidden[len(prompt) - 1 : -1]
        return {"l": token_logprobs_and_entropy(predictors, head, ids[0, len(prompt) :])[0]}

    return -weight * run_as_forward(model, logprobs)["l"].sum()


def backward(model: Any, step: int, ranks: tuple[int, ...]) -> float:
    """The gradient of these ranks' rows; a row without weight where one has fewer."""
    total = 0.0
    most = max(len(share) for share in SHARES[step])
    for rank in ranks:
        rows = random_rows(SHARES[step][rank], seed=10 * step + rank)
        for row in [*rows, *[([3], [4])] * (most - len(rows))]:
            weight = 1.0 / TOKENS[step] if row in rows else 0.0
            loss = loss_of(model, row, weight)
            loss.backward()
            total += float(loss.detach())
    return total


def train(model: Any, optimizer: Any, steps: range, ranks: tuple[int, ...]) -> dict[str, Any]:
    losses, norms = [], []
    for step in steps:
        optimizer.zero_grad(set_to_none=True)
        losses.append(backward(model, step, ranks))
        norms.append(float(clip_gradient_norm(model.parameters(), LIMIT)))
        optimizer.step()
    return {"losses": losses, "norms": norms}


def whole_run(folder: Path) -> dict[str, Any]:
    model = load(folder)
    optimizer = adamw(model)
    result = train(model, optimizer, range(STEPS), (0, 1))
    return {
        **result,
        "state": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "names": [name for name, _ in model.named_parameters()],
        "frequencies": [b for n, b in model.named_buffers() if "inv_freq" in n],
    }


# -- What each rank does --------------------------------------------------------------------


def sharded(folder: Path, rank: int, **settings: Any) -> Any:
    model = load(folder) if rank == 0 else hollow(folder)
    shard_causal_lm(model, torch.device("cpu"), **settings)
    return model


def sharded_run(folder: Path, rank: int, half_way: dict[str, Any]) -> dict[str, Any]:
    model = sharded(folder, rank)
    optimizer = adamw(model)
    start = full_state(model, keep=True)
    result = train(model, optimizer, range(STEPS), (rank,))
    params = list(model.parameters())
    result |= {
        "start": start,
        "state": full_state(model, keep=True),
        "optimizer": full_optimizer_state(optimizer, keep=True),
        "names": [name for name, _ in model.named_parameters()],
        "frequencies": [b.clone() for n, b in model.named_buffers() if "inv_freq" in n],
        "tied": model.lm_head.weight is model.model.embed_tokens.weight,
        "own": sum(p.to_local().numel() for p in params),
        "all": sum(p.numel() for p in params),
        "left_out": len(full_state(model, keep=False)),
        "left_out_moments": full_optimizer_state(optimizer, keep=False)["state"],
        "moments_are_slices": all(
            isinstance(v, DTensor) for s in optimizer.state.values() for v in s.values() if v.ndim
        ),
    }
    # Go on from what one process had after some steps, with arrays as RLlib has them.
    load_full_state(model, {k: v.numpy() for k, v in half_way["state"].items()})
    result["loaded"] = full_state(model, keep=True)
    optimizer = adamw(model)
    given = copy.deepcopy(half_way["optimizer"]["state"])
    load_full_optimizer_state(optimizer, half_way["optimizer"])
    train(model, optimizer, range(2, STEPS), (rank,))
    result["untouched"] = all(
        torch.equal(value, given[number][key])
        for number, values in half_way["optimizer"]["state"].items()
        for key, value in values.items()
    )
    result["went_on"] = full_state(model, keep=True)
    return result


def wrong_average(folder: Path, rank: int) -> float:
    """The gradient's norm if FSDP averaged over the ranks, as it does unless told."""
    model = sharded(folder, rank)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(2.0)
    backward(model, 0, (rank,))
    return float(clip_gradient_norm(model.parameters(), None))


def half_precision(folder: Path, rank: int) -> dict[str, Any]:
    model = sharded(folder, rank, compute_dtype=torch.bfloat16)
    seen = []
    model.lm_head.register_forward_hook(lambda *_: None)
    model.model.layers[0].mlp.register_forward_pre_hook(lambda m, args: seen.append(args[0].dtype))
    backward(model, 0, (rank,))
    return {
        "seen": seen,
        "masters": {p.dtype for p in model.parameters()},
        "grads": {p.grad.dtype for p in model.parameters()},
        "norm": float(clip_gradient_norm(model.parameters(), None)),
    }


def checkpointed(model: Any) -> Any:
    """Layers compute their activations again; the model has no dropout."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def frozen(model: Any) -> Any:
    """Only some weights of each layer are trained, and none of the root, as with adapters."""
    for name, param in model.named_parameters():
        param.requires_grad_("mlp" in name)
    return model


VARIANTS = {"checkpointed": checkpointed, "frozen": frozen}


def norm_of(model: Any, ranks: tuple[int, ...]) -> float:
    backward(model, 0, ranks)
    return float(clip_gradient_norm(model.parameters(), None))


def message_of(call: Any) -> str:
    try:
        call()
    except TrainingError as error:
        return str(error)
    return ""


def not_finite(folder: Path, rank: int) -> float:
    """One element of one slice on rank 1."""
    model = sharded(folder, rank)
    backward(model, 0, (rank,))
    if rank == 1:
        next(iter(model.parameters())).grad.to_local()[0] = torch.nan
    return float(clip_gradient_norm(model.parameters(), 1.0))


def without_gradient(folder: Path, rank: int) -> list[torch.Tensor]:
    """Forward passes alone leave the root gathered; states must be right all the same."""
    model = sharded(folder, rank)
    row = random_rows([4])[0]
    changed = {k: v + 0.1 for k, v in full_state(model, keep=True).items()}
    with torch.no_grad():
        before = loss_of(model, row, 1.0)
        load_full_state(model, changed)
        after = loss_of(model, row, 1.0)
    return [before, after]


def work(rank: int, folder: Path, states: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    tied = folder / "tied"
    results: dict[str, Any] = {
        name: sharded_run(folder / name, rank, states[name]) for name in MODELS
    }
    results["wrong_average"] = wrong_average(tied, rank)
    results["half_precision"] = half_precision(tied, rank)
    for name, change in VARIANTS.items():
        model = change(load(tied) if rank == 0 else hollow(tied))
        shard_causal_lm(model, torch.device("cpu"))
        results[name] = norm_of(model, (rank,))
    results["not_finite"] = not_finite(tied, rank)
    results["without_gradient"] = without_gradient(tied, rank)
    other = folder / ("tied" if rank == 0 else "deeper")
    results["other_model"] = message_of(lambda: sharded(other, rank))
    model = sharded(tied, rank)
    state = full_state(model, keep=True)
    name = "model.norm.weight"
    results["missing"] = message_of(
        lambda: load_full_state(model, {k: v for k, v in state.items() if k != name})
    )
    results["shape"] = message_of(lambda: load_full_state(model, {**state, name: torch.ones(2)}))
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()
