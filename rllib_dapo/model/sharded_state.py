"""Whole states of sharded modules and optimizers, in the format of unsharded ones.

    slices --full_state, full_optimizer_state--> the names and arrays of one learner
    whole state --load_full_state, load_full_optimizer_state--> slices

So a checkpoint does not depend on the number of learners that wrote it, and any number can
read it. Parameters are gathered one after the other: a rank that does not keep the result
needs memory for its slices and for the largest parameter only.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from rllib_dapo.errors import TrainingError


def full_state(
    module: nn.Module, *, keep: bool, only: Collection[str] | None = None
) -> dict[str, Tensor]:
    """Return the whole `state_dict` of a sharded module; a collective call.

    Args:
        module: a sharded module, or one with sharded parts.
        keep: False takes part in the call and returns an empty dictionary.
        only: the names to gather, the same on every rank; None gathers all.

    Returns:
        CPU tensors by name; names of tied weights share one tensor.
    """
    result, seen = {}, {}
    # With `keep_vars` tied weights are one object, which is gathered once.
    for name, tensor in module.state_dict(keep_vars=True).items():
        if only is not None and name not in only:
            continue
        if id(tensor) not in seen:
            seen[id(tensor)] = _gather(tensor, keep)
        result[name] = seen[id(tensor)]
    return {name: tensor for name, tensor in result.items() if tensor is not None}


@torch.no_grad()
def load_full_state(
    module: nn.Module, state: Mapping[str, Any], *, only: Collection[str] | None = None
) -> None:
    """Load a whole state into a module; every rank calls this with all of it.

    Each slice takes its part, and the ranks exchange nothing.

    Args:
        module: any module, sharded or not.
        state: tensors or arrays by name. Names that the module lacks are ignored, as in
            RLlib.
        only: the names to load; None loads all that the module has.

    Raises:
        TrainingError: a name is missing, or a shape differs.
    """
    own = module.state_dict(keep_vars=True)
    if only is not None:
        own = {name: tensor for name, tensor in own.items() if name in only}
    if missing := sorted(set(own) - set(state)):
        raise TrainingError(
            f"the state to restore lacks {len(missing)} weights, such as {missing[0]!r}; is it "
            "that of another `model`?"
        )
    for name, tensor in own.items():
        tensor.copy_(_part_for(tensor, state[name], name))


@torch.no_grad()
def fill_from_rank_0(
    module: nn.Module, state: Mapping[str, Tensor] | None, mesh: DeviceMesh
) -> None:
    """Scatter rank 0's weights over the slices, and copy its buffers; a collective call.

    Args:
        module: a sharded module, whose values are still undefined on ranks other than 0.
        state: on rank 0 the whole `state_dict`, else None.
        mesh: the mesh over which the module is sharded.
    """
    seen = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if not isinstance(tensor, DTensor) or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        device = tensor.to_local().device
        whole = (
            state[name].to(device)
            if state is not None
            else torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        )
        tensor.copy_(distribute_tensor(whole, mesh, tensor.placements, src_data_rank=0))
    # Some buffers, such as the frequencies of rotary embeddings, are not part of the state.
    for buffer in module.buffers():
        dist.broadcast(buffer, group_src=0, group=mesh.get_group())


def full_optimizer_state(optimizer: Optimizer, *, keep: bool) -> dict[str, Any]:
    """Return the whole `state_dict` of an optimizer of sharded parameters; a collective call.

    Args:
        optimizer: any optimizer; AdamW has `step` and two moments for each parameter.
        keep: False takes part in the call and returns no state of parameters.

    Returns:
        What `Optimizer.state_dict` returns, with whole tensors on the CPU.
    """
    state = optimizer.state_dict()
    whole = {
        number: {key: _gather(value, keep) for key, value in values.items()}
        for number, values in sorted(state["state"].items())
    }
    return {**state, "state": whole if keep else {}}


def load_full_optimizer_state(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load a whole state into an optimizer of sharded parameters, on every rank.

    Args:
        optimizer: has the same parameters in the same order as the optimizer of the state.
        state: what `full_optimizer_state` returned, as tensors or arrays.

    Raises:
        TrainingError: the number of parameters or a shape differs.
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    if len(params) != len(numbers):
        raise TrainingError(
            f"the optimizer state to restore has {len(numbers)} parameters, this run has "
            f"{len(params)}; is it that of another `model`?"
        )
    parts = {
        number: {
            # These are copies, because the optimizer writes into them. `step` is not sliced.
            key: _part_for(param, value, f"{key} of parameter {number}").clone()
            if np.ndim(value)
            else torch.tensor(float(value))
            for key, value in state["state"][number].items()
        }
        for number, param in zip(numbers, params, strict=True)
        if number in state["state"]
    }
    optimizer.load_state_dict({**state, "state": parts})


def _gather(value: Any, keep: bool) -> Any:
    """Return a whole tensor on the CPU, or None if it is not to be kept."""
    if isinstance(value, DTensor):
        value = value.full_tensor().detach()
    if not keep:
        return None
    return value.detach().cpu() if isinstance(value, Tensor) else value


def _part_for(target: Tensor, whole: Any, name: str) -> Tensor:
    """Return the part of a whole tensor or array that belongs into `target`, a slice or not."""
    if isinstance(whole, np.ndarray):
        with warnings.catch_warnings():
            # PyTorch warns about read-only arrays (Ray's shared memory), which are only read.
            warnings.simplefilter("ignore", UserWarning)
            whole = torch.from_numpy(whole)
    tensor: Tensor = torch.as_tensor(whole)
    if tensor.shape != target.shape:
        raise TrainingError(
            f"{name} has the shape {tuple(tensor.shape)} in the state to restore and "
            f"{tuple(target.shape)} here; is it that of another `model`?"
        )
    if not isinstance(target, DTensor):
        return tensor
    part: Tensor = distribute_tensor(
        tensor, target.device_mesh, target.placements, src_data_rank=None
    )
    return part
