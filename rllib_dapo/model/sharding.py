"""Fully sharded data parallelism (FSDP2): each learner holds a slice of every weight.

    loaded on rank 0 --shard_causal_lm--> sliced along the first dimension over all ranks
    forward, backward --> a layer is gathered for its use; its gradient is summed and sliced

Weights, gradients and the optimizer's state are `DTensor`s; each of R ranks holds 1/R of them.
A forward or backward pass is a series of collective calls, so every rank makes the same number
of passes, with `batching.idle_row` where it has no data. Source: Zhao et al. 2023 (arXiv
2304.11277); the interface is torch's `fully_shard`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from rllib_dapo.errors import SettingError, TrainingError
from rllib_dapo.model.sharded_state import fill_from_rank_0

_T = TypeVar("_T")


def is_first() -> bool:
    """Return whether this is rank 0 of the learners, or the only one."""
    return not dist.is_initialized() or dist.get_rank() == 0


def is_sharded(module: nn.Module) -> bool:
    """Return whether `shard` was applied to this module."""
    return isinstance(module, FSDPModule)


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a Hugging Face model, which are gathered one at a time.

    Raises:
        SettingError: the model does not name them.
    """
    names = set(getattr(model, "_no_split_modules", None) or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        raise SettingError(
            f"shard_model=True: {type(model).__name__} does not say what its layers are "
            "(`_no_split_modules`), so it would be gathered whole; set `shard_model` to false",
            "shard_model",
        )
    return layers


def shard(
    module: nn.Module,
    layers: Iterable[nn.Module],
    mesh: DeviceMesh,
    *,
    compute_dtype: torch.dtype = torch.float32,
) -> None:
    """Slice a module's parameters over the ranks of a mesh, in place.

    Each layer is one group, gathered for its forward and again for its backward pass. All
    other parameters (embeddings, final norm, head; tied weights stay tied) are the root's
    group, gathered from the beginning of a forward pass to the end of its backward pass.
    Names and order of the parameters stay; the parameters themselves are new, so the
    optimizer must be made afterwards.

    Gradients are summed over the ranks: g = Σ_r g_r. FSDP's default is the average, but the
    loss has the denominator of the global minibatch already.

    Args:
        module: the root. Its class changes, and it gets a method `run_as_forward`.
        layers: submodules that do not contain each other.
        mesh: a one-dimensional mesh.
        compute_dtype: the number format of the gathered weights, the activations and a
            rank's own gradients. The slices, the sum over the ranks and the optimizer keep
            the format of the module.
    """
    policy = MixedPrecisionPolicy(
        # None avoids a copy of master weights that have this format already.
        param_dtype=None if compute_dtype == torch.float32 else compute_dtype,
        reduce_dtype=torch.float32,
    )
    groups = [*layers, module]
    for group in groups:
        fully_shard(group, mesh=mesh, mp_policy=policy)
    for group in groups:
        # With a factor alone, FSDP chooses a reduction that only NCCL has.
        group.set_gradient_divide_factor(1.0)  # type: ignore[operator]
        group.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]
    module.run_as_forward = _call  # type: ignore[assignment]
    register_fsdp_forward_method(module, "run_as_forward")


def run_as_forward(module: nn.Module, function: Callable[[], _T]) -> _T:
    """Call a function that uses the root's own weights, as the forward pass of the root.

    Outside of a forward pass the weights are slices, and FSDP gathers them in hooks of
    `module.forward`. A function that computes with the module in another way needs these
    hooks, too. If the module is not sharded, the function is simply called.

    Args:
        module: a module that `shard` was applied to, or any other.
        function: returns tensors, or a tuple or dictionary of them, to call `backward` on.
    """
    if not is_sharded(module):
        return function()
    result: _T = module.run_as_forward(function)  # type: ignore[operator]
    return result


def reshard(module: nn.Module) -> None:
    """Free the root's gathered weights after a forward pass without a backward pass.

    A backward pass frees them itself. Nothing happens if the module is not sharded.
    """
    if is_sharded(module):
        module.reshard()  # type: ignore[operator]


def _call(function: Callable[[], _T]) -> _T:
    return function()


def shard_causal_lm(
    model: nn.Module, device: torch.device, *, compute_dtype: torch.dtype = torch.float32
) -> None:
    """Slice a language model over all ranks, in place; a collective call.

    Args:
        model: on rank 0 the model with its weights (on the CPU, so that no GPU ever holds all
            of them); on the other ranks the same structure on the meta device.
        device: the device of this rank's slices.
        compute_dtype: see `shard`.

    Raises:
        SettingError: the model does not name its layers.
        TrainingError: the ranks do not have the same model.
    """
    if device.type != "cpu":  # The mesh would choose a device by the rank, not the one from Ray.
        torch.accelerator.set_device_index(device.index or 0)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    _check_same_structure(model)
    # `shard` replaces rank 0's parameters by slices; these references keep the whole ones.
    whole = dict(model.state_dict()) if is_first() else None
    shard(model, decoder_layers(model), mesh, compute_dtype=compute_dtype)
    if whole is None:
        model.to_empty(device=device)
    fill_from_rank_0(model, whole, mesh)


def _check_same_structure(model: nn.Module) -> None:
    """Refuse different models, which would mix up weights or block in a collective call."""
    own = [
        (name, tuple(tensor.shape), str(tensor.dtype))
        for name, tensor in [*model.state_dict().items(), *model.named_buffers()]
    ]
    structures: list[list[tuple[str, tuple[int, ...], str]]] = [[]] * dist.get_world_size()
    dist.all_gather_object(structures, own)
    for rank, other in enumerate(structures):
        if different := set(other) ^ set(structures[0]):
            raise TrainingError(
                f"learners 0 and {rank} built different models, for instance {min(different)}; "
                "do all nodes have the same files of `model` and the same transformers?"
            )


@torch.no_grad()
def clip_gradient_norm(params: Iterable[Tensor], limit: float | None) -> Tensor:
    """Scale gradients, sharded or whole, so that their global norm is at most `limit`.

    ```
    ‖g‖ = √ Σ_i g_i²  over all elements of all parameters,  g ← g · min(1, limit / ‖g‖)
    ```

    With sharded parameters this is a collective call. Whole gradients are the same on all
    ranks, so they are counted once, without communication.

    Args:
        params: the parameters; those without a gradient are left out.
        limit: above 0; None only measures.

    Returns:
        ‖g‖ before scaling, a float32 scalar that is the same on every rank. It is not finite
        if a gradient is not.
    """
    grads = [param.grad for param in params if param.grad is not None]
    if not grads:
        return torch.zeros(())
    slices = [g.to_local() if isinstance(g, DTensor) else g for g in grads]
    norms = torch.stack(torch._foreach_norm(slices))
    # The sum is float64, so that its order, and with it the number of ranks, hardly matters.
    squares = norms.double().square()
    is_slice = torch.tensor([isinstance(g, DTensor) for g in grads], device=squares.device)
    total = squares[is_slice].sum()
    mesh = next((g.device_mesh for g in grads if isinstance(g, DTensor)), None)
    if mesh is not None:
        dist.all_reduce(total, group=mesh.get_group())
    norm = (total + squares[~is_slice].sum()).sqrt().float()
    if limit is not None:
        torch._foreach_mul_(slices, (limit / (norm + 1e-6)).clamp(max=1.0))
    return norm
