"""The parameters and buffers of models and optimizers: their names, and their tensors on this rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

Optimizer = torch.optim.Optimizer
_WRAPPER_PREFIXES = ("module.", "_orig_mod.", "_forward_module.", "_fsdp_wrapped_module.")


def plain_name(name: str) -> str:
    """The name of a parameter or module without the prefixes of wrappers."""
    dotted = name + "."
    for prefix in _WRAPPER_PREFIXES:
        if dotted.startswith(prefix):
            dotted = dotted[len(prefix) :]
    return dotted.replace("._orig_mod.", ".").replace("._fsdp_wrapped_module.", ".").removesuffix(".")


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The detached tensor; of a sharded one this rank's shard."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.detach()


def sharded_as(local: torch.Tensor, like: Any) -> torch.Tensor:
    """This rank's part of a tensor as a shard of the whole, if `like` is one of the same shape."""
    part = getattr(like, "_local_tensor", None)
    if part is None or part.shape != local.shape or not local.dim():
        return local
    from torch.distributed.tensor import DTensor

    shape, stride = like.shape, like.stride()
    return DTensor.from_local(local, like.device_mesh, like.placements, run_check=False, shape=shape, stride=stride)


def is_usable(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be copied: not one of a lazy layer, sparse or on the meta device."""
    if type(tensor) in (UninitializedParameter, UninitializedBuffer):
        return False
    return tensor.layout is torch.strided and tensor.device.type != "meta"


def parameters_in(module: nn.Module) -> dict[str, torch.Tensor]:
    """All parameters by name, also those that its class leaves out; a shared one under each of its names."""
    return {plain_name(name): p for name, p in nn.Module.named_parameters(module, remove_duplicate=False) if is_usable(p)}


def buffers_in(module: nn.Module) -> dict[str, torch.Tensor]:
    """All buffers by name, including those not in `state_dict()`."""
    return {plain_name(name): b for name, b in nn.Module.named_buffers(module, remove_duplicate=False) if is_usable(b)}


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """All parameters of an optimizer, group by group; must not be changed, it may be the optimizer's own list."""
    groups = optimizer.param_groups
    if len(groups) == 1:
        parameters: list[torch.Tensor] = groups[0]["params"]
        return parameters
    return [parameter for group in groups for parameter in group["params"]]
