"""The tensors of sharded states (FSDP, tensor parallelism), in the format of `torch.distributed.checkpoint`.

    step-000123/
      shards/         the tensors of models, averages and optimizers, each rank's shards
      training.pt     everything else; a number in place of each of these tensors, and the list of their names

A shard knows its place in the whole, so any number of ranks can read them; those of FullyShardedDataParallel do not, and only the
same number can. `shards/` holds only tensors: reading them runs no code.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoints import spare
from holdfast.checkpoints.formats.files import checksum
from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.checkpoints.write import begin_checkpoint, finish_checkpoint, sync_folder
from holdfast.errors import StorageError
from holdfast.state.checkpoint_parts import IN_SHARDS, Moved, NonFinite, SavedState, read_back, to_sharded_part
from holdfast.state.host_copy import HostCopy, LiveState, Source
from holdfast.state.ranks import RankNotes
from holdfast.state.values import refs_in

SHARDS = "shards"
_PER_RANK = ("randomness", "loader")


def as_shard(local: torch.Tensor, spec: Any) -> torch.Tensor:
    """This rank's part of a tensor with its place in the whole, if it has one."""
    if spec is None:
        return local
    shard: torch.Tensor = importlib.import_module("torch.distributed.tensor").DTensor(local, spec, requires_grad=False)
    return shard


def place_shards(path: Path, saved: SavedState, live: LiveState) -> None:
    """Give each rank its part of each saved tensor: read from `shards/`, or cut from the whole. All ranks must call this."""
    folder, like = path / SHARDS, _sources_by_place(live)
    index = _read_index(folder) if any(isinstance(host, str) for host in saved.hosts) else {}
    wanted: dict[str, Any] = {}
    for place, ref in refs_in({kind: saved.tree.get(kind, []) for kind in IN_SHARDS}):
        host = saved.hosts[ref.number]
        if isinstance(host, str):
            if host not in index:
                raise StorageError(f"{folder} does not hold {host}.", fix="use an older checkpoint")
            if host not in wanted:
                source, dtype = like(place, index[host].size), index[host].properties.dtype
                local = torch.empty(index[host].size if source is None else source.tensor.shape, dtype=dtype)
                wanted[host] = as_shard(local, source.spec if source is not None else None)
        elif (source := like(place, host.shape)) is not None and host.shape != source.tensor.shape:
            saved.hosts[ref.number] = _own_part(host, source)
    _load(folder, wanted)
    for number, host in enumerate(saved.hosts):
        if isinstance(host, str) and host in wanted:  # what is not restored, such as the optimizer's, is not read
            loaded = wanted[host]
            saved.hosts[number] = getattr(loaded, "_local_tensor", loaded)


def _sources_by_place(live: LiveState) -> Callable[[str, Any], Source | None]:
    """A function that returns the live shard for a place in the tree; None for what is not sharded, or has another size."""
    places = {place: live.sources[ref.number] for place, ref in refs_in(live.tree)}

    def like(place: str, size: Any) -> Source | None:
        kind, number, *rest = place.split(".")
        parameter = (
            rest[1] if rest[0] == "state" and kind == "optimizers" else rest[0]
        )  # of a state or gradient that is not there
        source = places.get(place) or places.get(f"optimizers.{number}.parameters.{parameter}")
        return source if source is not None and source.spec is not None and source.spec.shape == torch.Size(size) else None

    return like


def _own_part(whole: torch.Tensor, source: Source) -> torch.Tensor:
    distribute: Any = importlib.import_module("torch.distributed.tensor").distribute_tensor
    part: torch.Tensor = distribute(whole.to(source.tensor.device), source.spec.mesh, source.spec.placements).to_local()
    return part


def _load(folder: Path, wanted: dict[str, Any]) -> None:
    """Fill these tensors; no collectives."""
    if not wanted:
        return
    alone = {"no_dist": True} if "no_dist" in inspect.signature(dcp().load).parameters else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about reading without a process group
        try:
            dcp().load(wanted, storage_reader=dcp().FileSystemReader(folder), **alone)
        except (Exception, dcp().CheckpointException) as error:  # noqa: BLE001 - torch raises many types
            raise StorageError(f"{folder} cannot be read: {error}", fix="use an older checkpoint") from None


def _read_index(folder: Path) -> dict[str, Any]:
    """Size and dtype of each tensor, by name. The index is a pickle: one that would run code is refused before it is read."""
    contents = open_checkpoint(folder)
    if contents.state not in ("clean", "non-finite"):
        trouble = contents.troubles[0]
        raise StorageError(f"{folder} cannot be read: {trouble.text}", fix=trouble.fix)
    return dict(dcp().FileSystemReader(folder).read_metadata().state_dict_metadata)


def dcp() -> Any:
    """Imported on use: it is large, and not every build of torch has it."""
    return importlib.import_module("torch.distributed.checkpoint")


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
            read_back(path, moved)
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
