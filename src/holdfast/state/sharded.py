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

from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.errors import StorageError
from holdfast.state.checkpoint_parts import IN_SHARDS, SavedState
from holdfast.state.host_copy import LiveState, Source
from holdfast.state.values import refs_in

SHARDS = "shards"


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
