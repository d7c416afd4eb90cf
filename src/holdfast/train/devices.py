"""Which device this process trains on, and what joins it to the other ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.errors import UsageError
from holdfast.train.device_names import devices


@dataclass(frozen=True, slots=True)
class Place:
    """This process among all that train together."""

    device: torch.device
    rank: int = 0
    world_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this rank writes and prints."""
        return self.rank == 0

    def join(self, model: nn.Module, *, fsdp: bool) -> nn.Module:
        """The model as all ranks train it together."""
        if self.world_size == 1:
            return model
        if fsdp:
            _shard(model)
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, find_unused_parameters=False)

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, on every rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


def _shard(model: nn.Module) -> None:
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        raise UsageError(f"FSDP2 needs torch 2.6 or newer, not {torch.__version__}.", fix="drop --fsdp: DDP is used") from None
    fully_shard(model)


@contextmanager
def place(setting: str) -> Iterator[Place]:
    """Join the other ranks, if there are any, and leave them at the end."""
    names = devices(setting)
    world_size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = torch.device(names[int(os.environ.get("LOCAL_RANK", "0")) % len(names)])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world_size == 1:
        yield Place(device)
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Place(device, rank, world_size)
    finally:
        dist.destroy_process_group()


def without_sync(model: nn.Module, *, waits: bool) -> AbstractContextManager[Any]:
    """No gradient exchange while more batches of the same update follow."""
    if isinstance(model, DistributedDataParallel) and waits:
        return model.no_sync()
    if (set_sync := getattr(model, "set_requires_gradient_sync", None)) is not None:  # of FSDP2
        set_sync(not waits)
    return nullcontext()


def to_device(value: Any, device: torch.device) -> Any:
    """A batch on the device; tensors within dicts and lists too."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {name: to_device(part, device) for name, part in value.items()}
    return [to_device(part, device) for part in value] if isinstance(value, (list, tuple)) else value
