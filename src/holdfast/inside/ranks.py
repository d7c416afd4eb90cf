"""How many ranks there are, and the one number that those which share a model may have to agree on.

They agree on the groups of the training itself: other ranks of the same world may do other things (draw samples, evaluate),
and never come to a collective of all.
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
    """The ranks among which the parameters of one optimizer are sharded; all of them come to each of its collectives.

    Whatever a rank has to say, on the host or on a device, it says as one float64 in the same place: who has nothing says 0.0.
    """

    def __init__(self, groups: Sequence[Any], device: torch.device, *, copies: int = 1) -> None:
        self._groups, self._copies = groups, copies  # copies: how many ranks hold the same shard, and count it again
        self.on_device = device.type == "cuda"  # whether the shards lie there: alike on every rank, gradients or not
        kinds = [kind.type for kind in groups[0]._device_types]
        self._device = device if device.type in kinds else torch.device(kinds[0])  # offloaded shards meet where NCCL can

    def sum(self, value: float) -> float:
        """Sum of a number over the ranks. Not a number anywhere makes it so everywhere."""
        return float(self._reduce(torch.tensor([value], dtype=torch.float64, device=self._device)).item()) / self._copies

    def any(self, flag: torch.Tensor | bool) -> torch.Tensor:
        """A scalar on the device: 1 if a flag (1 or 0) of any rank is set, else 0; nothing waits for it."""
        if isinstance(flag, torch.Tensor):
            vote = flag.detach().to(self._device, torch.float64).reshape(1)
            vote = torch.where(vote != 0.0, torch.full_like(vote, math.nan), torch.zeros_like(vote))
        else:
            vote = torch.full((1,), math.nan if flag else 0.0, dtype=torch.float64, device=self._device)
        return self._reduce(vote).isfinite().logical_not().float().reshape(())

    def _reduce(self, vote: torch.Tensor) -> torch.Tensor:
        for group in self._groups:
            group.allreduce([vote]).wait()  # not through the functions that are watched
        return vote


def sharing_ranks(parameters: Iterable[torch.Tensor]) -> tuple[RankAgreement | None, str]:
    """Who shares these parameters; None if nobody does. The words say why it is not known, if it is not."""
    sharded = [parameter for parameter in parameters if is_sharded(parameter)]
    if not sharded or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None, ""
    found = [*_meshes(sharded), *_wrappers([p for p in sharded if not hasattr(p, "_local_tensor")])]
    found = [(ranks, groups, copies) for ranks, groups, copies in found if len(ranks) != 1]
    if not found:
        return None, ""
    ranks, groups, copies = max(found, key=lambda one: len(one[0]))
    if any(not others or not others <= ranks for others, _, _ in found):
        return None, "the ranks that hold shards of one optimizer's parameters are not one known group"
    device: torch.device = getattr(sharded[0], "_local_tensor", sharded[0]).device
    return RankAgreement(groups, device, copies=copies), ""


_Found = tuple[set[int], list[Any], int]  # ranks, the groups that reach them one after the other, copies of each shard


def _meshes(parameters: list[torch.Tensor]) -> list[_Found]:
    """The device meshes of distributed tensors (FSDP2, tensor parallelism)."""
    placements: dict[Any, list[Any]] = {}
    for parameter in parameters:
        if hasattr(parameter, "_local_tensor") and hasattr(parameter, "device_mesh"):
            placements.setdefault(parameter.device_mesh, []).append(parameter.placements)  # type: ignore[attr-defined]
    found: list[_Found] = []
    for mesh, given in placements.items():
        if mesh.get_coordinate() is None:  # this rank is not in it, and holds nothing
            continue
        wide = [dim for dim in range(mesh.ndim) if mesh.size(dim) > 1]
        copies = math.prod(mesh.size(dim) for dim in wide if all(one[dim].is_replicate() for one in given))
        found.append((set(mesh.mesh.flatten().tolist()), [mesh.get_group(dim) for dim in wide], copies))
    return found


def _wrappers(parameters: list[torch.Tensor]) -> list[_Found]:
    """The groups of all FullyShardedDataParallel modules around these; no ranks where there is a parameter without one."""
    mine = {id(parameter) for parameter in parameters}
    if not mine:
        return []
    from torch.distributed.fsdp import FullyShardedDataParallel  # in memory already: the parameters are its

    found, held = list[_Found](), set[int]()
    for thing in gc.get_objects():
        if issubclass(type(thing), FullyShardedDataParallel) and (own := mine & {id(inner) for inner in thing.parameters()}):
            found.append((set(torch.distributed.get_process_group_ranks(thing.process_group)), [thing.process_group], 1))
            held |= own
    return found if held == mine else [*found, (set(), [], 1)]
