"""How many ranks there are, and the one number that they may have to agree on."""

from __future__ import annotations

import os
from typing import Any, TypeVar

import torch

Number = TypeVar("Number", float, torch.Tensor)


def world_size() -> int:
    """Number of ranks of this training."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if size.isdigit() else 1


def current_rank() -> int:
    """This process's rank: of the process group if there is one, else as the launcher says."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    rank = os.environ.get("RANK", "0")
    return int(rank) if rank.isdigit() else 0


def is_sharded(parameter: torch.Tensor) -> bool:
    """Whether this rank holds only a part of the parameter."""
    return any(hasattr(parameter, name) for name in ("_local_tensor", "_sharded_size", "_fsdp_flattened"))


def sum_over_ranks(value: Any) -> Any:
    """Sum of a number over all ranks; on a device nothing waits for it. Not a number anywhere makes it so everywhere."""
    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return value
    group = distributed.distributed_c10d._get_default_group()  # not through the functions that are watched
    if isinstance(value, torch.Tensor):
        reduced = value.detach().clone().reshape(1)
        group.allreduce([reduced]).wait()
        return reduced.reshape(())
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    reduced = torch.tensor([value], dtype=torch.float64, device=device)
    group.allreduce([reduced]).wait()
    return float(reduced.item())
