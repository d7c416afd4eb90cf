"""The number of ranks, and the one number that ranks with parts of the same model have to agree on.

Ranks with shards use the process groups of the training itself: other ranks of the world may do something else (generate,
evaluate) and never join a collective of all ranks. The stages of a pipeline have no collective in common around their update:
they vote through a connection of Holdfast's own to the store that the ranks met at.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch

from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.signals.pulse import COLLECTIVE
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


_FIRST_VOTE, _VOTE = timedelta(minutes=2), timedelta(minutes=10)  # a stage may not be guarded at all; as for a collective
_GOOD, _BAD, _LEAVES = b"0", b"1", b"2"
_agreements = itertools.count()  # the same on every stage, for all begin their trainings in the same order


class StageAgreement:
    """The stages of one pipeline: all skip an update, or none does.

    A vote is a key with the number of its update: it cannot be taken for that of another. A rank that cannot continue votes
    so, and nobody waits for it afterwards. Never raises; if each stage decides alone from now on, `report` gets the reason.
    """

    def __init__(self, ranks: Sequence[int], rank: int, report: Callable[[str], None]) -> None:
        self._ranks, self._rank, self._report = ranks, rank, report
        self._store: Any = None
        self._name = f"holdfast/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{next(_agreements)}"
        self._updates = 0
        self.is_over = False

    def any(self, bad: bool) -> bool:
        """Whether any stage has a bad update; waits for all of them."""
        if self.is_over:
            return bad
        number, self._updates = self._updates, self._updates + 1
        try:
            self._vote(number, _BAD if bad else _GOOD)
            keys = [self._key(number, rank) for rank in self._ranks]
            with HEARTBEAT.during(COLLECTIVE):
                self._store.wait(keys, _VOTE if number else _FIRST_VOTE)
            votes = [self._store.get(key) for key in keys]
            if number > 0:  # everybody has read it: all have voted since
                self._store.delete_key(self._key(number - 1, self._rank))
        except Exception as error:  # noqa: BLE001 - the store is gone, or a rank is
            self.leave(f"not every stage has voted ({type(error).__name__}: {error})")
            return bad
        if _LEAVES in votes:
            self._end("the guard of another stage has failed")
        return _BAD in votes

    def leave(self, why: str = "the guard of this stage has failed") -> None:
        """Vote for the last time: the others must not wait for this rank any more."""
        if not self.is_over:
            self._end(why)
            with contextlib.suppress(Exception):  # the store is gone: they find out themselves
                self._vote(self._updates, _LEAVES)

    def _vote(self, number: int, vote: bytes) -> None:
        if self._store is None:
            self._store = _own_connection()
        self._store.set(self._key(number, self._rank), vote)

    def _key(self, number: int, rank: int) -> str:
        return f"{self._name}/{number}/{rank}"

    def _end(self, why: str) -> None:
        self.is_over = True
        self._report(f"{why}: each stage of the pipeline decides alone whether an update is skipped")


def stages_of(parameters: Iterable[torch.Tensor], report: Callable[[str], None]) -> StageAgreement | None:
    """The ranks with the other stages of the pipeline that these parameters are part of; None if there is no such pipeline."""
    module = sys.modules.get("torch.distributed.pipelining.stage")
    if module is None or not torch.distributed.is_initialized():
        return None
    wanted = {id(parameter) for parameter in parameters}
    for stage in gc.get_objects():
        if issubclass(type(stage), module._PipelineStageBase) and any(id(p) in wanted for p in stage.submod.parameters()):
            group = stage.group if stage.group is not None else torch.distributed.group.WORLD
            ranks = torch.distributed.get_process_group_ranks(group)
            return StageAgreement(ranks, torch.distributed.get_rank(), report) if len(ranks) > 1 else None
    return None


def _own_connection() -> Any:
    """A connection to the store of the default process group: one that waits does not hold up the training's own."""
    from torch._C._distributed_c10d import TCPStore
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    store: Any = _get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        raise TypeError(f"the ranks met at a {type(store).__name__}, not at a TCPStore")
    return TCPStore(store.host, store.port, is_master=False, wait_for_workers=False, timeout=_VOTE)
