"""Write a copied state as a checkpoint that was read back: whole, by one rank, or its shards, by all ranks together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoints import spare
from holdfast.checkpoints.formats.files import checksum
from holdfast.checkpoints.read import read_checkpoint, verify_checkpoint
from holdfast.checkpoints.write import begin_checkpoint, finish_checkpoint, named_tensors, sync_folder, write_checkpoint
from holdfast.errors import StorageError
from holdfast.state.checkpoint_parts import to_parts, to_sharded_part
from holdfast.state.host_copy import HostCopy
from holdfast.state.ranks import RankNotes
from holdfast.state.sharded import SHARDS, as_shard, dcp

_PER_RANK = ("randomness", "loader")
Moved = Callable[[], None]


class NonFinite(StorageError):
    """The state holds NaN or Inf and is not saved."""

    def __init__(self, step: int, tensors: list[dict[str, Any]]) -> None:
        first = tensors[0]["name"] + (f" on rank {tensors[0]['rank']}" if "rank" in tensors[0] else "")
        super().__init__(
            f"The state of step {step} was not saved: {len(tensors)} tensors hold NaN or Inf, first {first}.",
            fix="restore the newest clean checkpoint: store.restore(model=..., optimizer=...)",
        )
        self.tensors = tensors


def write_whole(folder: Path, step: int, copy: HostCopy, *, moved: Moved = lambda: None, **facts: Any) -> Path:
    """Write a state; returns the path. Raises NonFinite, StorageError, and DiskFull."""
    parts = to_parts(copy.tree, copy.hosts)
    if bad := copy.non_finite():
        names = {id(tensor): name for content in parts.values() for name, tensor in named_tensors(content)}
        raise NonFinite(step, [{"name": names.get(id(copy.hosts[n]), "?"), "non_finite": bad[n]} for n in bad])
    path = write_checkpoint(folder, step, parts, size=copy.size, moved=moved, **facts)
    _read_back(path, moved)
    return path


def _read_back(path: Path, moved: Moved) -> None:
    try:
        verify_checkpoint(path, from_disk=True, moved=moved)
        read_checkpoint(path, verify=False)  # it must load, too
    except StorageError:
        spare.remove(path)
        raise


def write_sharded(
    parent: Path, step: int, copy: HostCopy, ranks: RankNotes, *, by_rank: bool, moved: Moved, **facts: Any
) -> tuple[int, Path]:
    """Write a state with all ranks; returns rank 0's step and the path. Every rank takes every step, a failure is raised on all.

    Rank 0 makes a temporary folder; once all shards are on disk it adds training.pt and the manifest and renames the folder. A
    rank that dies before that leaves a temporary folder, never a checkpoint. With `by_rank` the names tell whose a tensor is.
    """
    leads, prefix = ranks.rank == 0, f"rank-{ranks.rank}." if by_rank else ""
    planner = dcp().DefaultSavePlanner()

    def describe() -> tuple[Any, ...]:
        training, refs = to_sharded_part(copy.tree, copy.hosts, prefix)
        names, bad = {ref.number: name for name, ref in refs.items()}, copy.non_finite()
        rows = [{"rank": ranks.rank, "name": names[number], "non_finite": bad[number]} for number in bad if number in names]
        shards = {name: as_shard(copy.hosts[ref.number], copy.specs[ref.number]) for name, ref in refs.items()}
        planner.set_up_planner(
            {name: shard for name, shard in shards.items() if leads or by_rank or type(shard) is not torch.Tensor},
            is_coordinator=leads,
        )
        own = training if leads or by_rank else {name: training[name] for name in _PER_RANK if name in training}
        return step, copy.size, rows, own, planner.create_local_plan()

    steps, sizes, bad, states, plans = zip(*ranks.share(describe), strict=True)
    if rows := [row for rows in bad for row in rows]:
        raise NonFinite(steps[0], rows)
    folder = Path(ranks.share(lambda: str(begin_checkpoint(parent, steps[0], size=sum(sizes))) if leads else "")[0])
    try:
        writer = dcp().FileSystemWriter(folder / SHARDS, sync_files=True)

        def write() -> tuple[Any, dict[str, Any], Any]:
            writer.set_up_storage_writer(leads)
            writer.prepare_local_plan(plans[ranks.rank])  # makes the folder
            global_plan, metadata = planner.create_global_plan(list(plans))  # the same on every rank
            plan = planner.finish_plan(writer.prepare_global_plan(global_plan)[ranks.rank])
            results = writer.write_data(plan, planner).wait()
            moved()
            return results, _checksums(folder, f"__{ranks.rank}_*"), metadata if leads else None

        results, files, (metadata, *_) = zip(*ranks.share(write), strict=True)

        def finish() -> str:
            writer.finish(metadata, list(results))
            others = {name: facts for written in (*files, _checksums(folder, ".metadata")) for name, facts in written.items()}
            sync_folder(folder / SHARDS)
            training = {**states[0], "ranks": dict(enumerate(states[1:], 1)), "by_rank": by_rank}
            path = finish_checkpoint(folder, steps[0], {"training": training}, others=others, moved=moved, **facts)
            _read_back(path, moved)
            return str(path)

        return steps[0], Path(ranks.share(lambda: finish() if leads else "")[0])
    finally:
        if leads:
            spare.clear(folder)


def _checksums(folder: Path, pattern: str) -> dict[str, Any]:
    """Size and checksum of the written files, by name."""
    return {
        f"{SHARDS}/{path.name}": {"size": path.stat().st_size, "crc32": checksum(path, 0, path.stat().st_size), "tensors": {}}
        for path in sorted((folder / SHARDS).glob(pattern))
    }
