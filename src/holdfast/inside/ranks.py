"""The number of ranks, and the one number that ranks with shards of the same model have to agree on.

They use the process groups of the training itself: other ranks of the world may do something else (generate, evaluate) and
never join a collective of all ranks.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from holdfast.state.ranks import current_rank as current_rank
from holdfast.state.ranks import is_sharded as is_sharded
from holdfast.state.ranks import world_size as world_size


class RankAgreement:
    """The ranks that hold shards of one optimizer's parameters; all of them join each of its collectives.

    Each rank contributes one float64 on the same device, 0.0 if it has nothing to report.
    """

    def __init__(self, groups: Sequence[Any], device: torch.device, *, copies: int = 1) -> None:
        self._groups, self._copies = groups, copies  # copies: how many ranks hold the same shard
        self.on_device = device.type == "cuda"  # the same on every rank, with or without gradients
        types = [kind.type for kind in groups[0]._device_types]
        self._device = device if device.type in types else torch.device(types[0])  # NCCL cannot reduce offloaded shards

    def sum(self, value: float) -> float:
        """Sum over the ranks; NaN on any rank makes it NaN on all."""
        return float(self._reduce(torch.tensor([value], dtype=torch.float64, device=self._device)).item()) / self._copies

    def any(self, flag: torch.Tensor | bool) -> torch.Tensor:
        """A scalar on the device: 1 if the flag of any rank is set, else 0; nothing waits for it."""
        if isinstance(flag, torch.Tensor):
            vote = flag.detach().to(self._device, torch.float64).reshape(1)
            vote = torch.where(vote != 0.0, torch.full_like(vote, math.nan), torch.zeros_like(vote))
        else:
            vote = torch.full((1,), math.nan if flag else 0.0, dtype=torch.float64, device=self._device)
        return self._reduce(vote).isfinite().logical_not().float().reshape(())

    def _reduce(self, vote: torch.Tensor) -> torch.Tensor:
        for group in self._groups:
            group.allreduce([vote]).wait()  # not the wrapped torch.distributed functions
        return vote


def sharing_ranks(parameters: Iterable[torch.Tensor]) -> tuple[RankAgreement | None, str]:
    """The ranks that share these parameters, None if there are none; and why that is unknown, if it is."""
    sharded = [parameter for parameter in parameters if is_sharded(parameter)]
    if not sharded or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None, ""
    sharings = [*_meshes(sharded), *_fsdp1_groups([p for p in sharded if not hasattr(p, "_local_tensor")])]
    sharings = [sharing for sharing in sharings if len(sharing[0]) != 1]
    if not sharings:
        return None, ""
    ranks, groups, copies = max(sharings, key=lambda sharing: len(sharing[0]))
    if any(not others or not others <= ranks for others, _, _ in sharings):
        return None, "the ranks that hold shards of one optimizer's parameters are not one known group"
    device: torch.device = getattr(sharded[0], "_local_tensor", sharded[0]).device
    return RankAgreement(groups, device, copies=copies), ""


_Sharing = tuple[set[int], list[Any], int]  # ranks, the groups that together reach them, copies of each shard


def _meshes(parameters: list[torch.Tensor]) -> list[_Sharing]:
    """The device meshes of DTensors (FSDP2, tensor parallelism)."""
    placements: dict[Any, list[Any]] = {}
    for parameter in parameters:
        if hasattr(parameter, "_local_tensor") and hasattr(parameter, "device_mesh"):
            placements.setdefault(parameter.device_mesh, []).append(parameter.placements)  # type: ignore[attr-defined]
    sharings: list[_Sharing] = []
    for mesh, used in placements.items():
        if mesh.get_coordinate() is None:  # this rank is not part of the mesh
            continue
        dims = [dim for dim in range(mesh.ndim) if mesh.size(dim) > 1]
        copies = math.prod(mesh.size(dim) for dim in dims if all(placement[dim].is_replicate() for placement in used))
        sharings.append((set(mesh.mesh.flatten().tolist()), [mesh.get_group(dim) for dim in dims], copies))
    return sharings


def _fsdp1_groups(parameters: list[torch.Tensor]) -> list[_Sharing]:
    """The groups of the FullyShardedDataParallel modules of these parameters; an empty one if a parameter has no module."""
    wanted = {id(parameter) for parameter in parameters}
    if not wanted:
        return []
    from torch.distributed.fsdp import FullyShardedDataParallel  # imported already: these are its parameters

    sharings, covered = list[_Sharing](), set[int]()
    for value in gc.get_objects():
        if issubclass(type(value), FullyShardedDataParallel) and (own := wanted & {id(p) for p in value.parameters()}):
            sharings.append((set(torch.distributed.get_process_group_ranks(value.process_group)), [value.process_group], 1))
            covered |= own
    return sharings if covered == wanted else [*sharings, (set(), [], 1)]
