"""States of which each rank holds a part: all ranks write them, through `torch.distributed.checkpoint`; any number may read them.

    step-000123/
      shards/         every tensor of models, averages and optimizers, from each rank its part
      training.pt     everything else, with the names of the tensors where those were

A tensor has the same name on every rank, and a part knows its place in the whole, so that other ranks, or one alone, can read
what they need. Only tensors are in `shards/`: reading them runs nobody's code.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.errors import CannotRestore, StorageError
from holdfast.inside.saving.shard_names import marks_in, name_tensors, refs_in, with_refs
from holdfast.inside.snapshots.host_copy import Source
from holdfast.inside.snapshots.plain import Ref
from holdfast.inside.snapshots.reading import Tree
from holdfast.inside.snapshots.state import Reading

SHARDS = "shards"
_PIECE = 1 << 22


# Writing: all ranks at once, in their helper threads


def write_shards(folder: Path, names: Mapping[Ref, str], hosts: Sequence[torch.Tensor], specs: Sequence[Any], group: Any) -> None:
    """Write this rank's parts beside those of the others; what every rank has, rank 0 writes. What fails is raised on all."""
    dcp = _dcp()
    leads = torch.distributed.get_rank(group) == 0
    tensors = {
        name: around(hosts[ref.number], specs[ref.number])
        for ref, name in names.items()
        if specs[ref.number] is not None or leads
    }
    try:
        dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder, sync_files=True), process_group=group)
    except dcp.CheckpointException as error:  # no Exception
        raise StorageError(f"{folder} could not be written: {_first_of(error)}", fix="free some space, or look at it") from None


def around(host: torch.Tensor, spec: Any) -> Any:
    """A rank's part on the host, as a tensor that knows its place in the whole."""
    if spec is None:
        return host
    if hasattr(spec, "local_shards"):  # a ShardedTensor that was made for this save
        for shard in spec.local_shards():
            shard.tensor = host
        return spec
    return _dtensor(host, spec)


def own_files(folder: Path, rank: int) -> dict[str, dict[str, Any]]:
    """Size and checksum of the files that a rank has written."""
    own = [path for path in folder.iterdir() if path.name.startswith(f"__{rank}_") or (rank == 0 and path.name == ".metadata")]
    return {f"{SHARDS}/{path.name}": _facts(path) for path in sorted(own)}


def _facts(path: Path) -> dict[str, Any]:
    crc, size = 0, 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            crc, size = zlib.crc32(piece, crc), size + len(piece)
    return {"size": size, "crc32": f"{crc:08x}", "tensors": {}}


# Reading: each rank for itself, what it needs


def from_shards(folder: Path, training: Tree, live: Reading, *, local: bool = True) -> tuple[Tree, list[torch.Tensor]]:
    """The tree of a sharded checkpoint and its tensors: this rank's parts of those that are sharded in the living training.

    With `local` a part is a plain tensor, without it one that knows its place in the whole.
    """
    places, saved = places_of(live), _index(folder / SHARDS)
    wanted: dict[str, Any] = {}
    for name, owner in marks_in(training):
        if name not in saved:
            raise StorageError(f"{folder / SHARDS} does not hold {name}.", fix="use an older checkpoint")
        if name not in wanted:
            wanted[name] = _room(places.get(name) or places.get(owner), saved[name])
    load_shards(folder / SHARDS, wanted)
    tree, rest = with_refs(training, list(wanted))
    as_they_are = _handed_over(tree)
    parts = [
        tensor if Ref(number) in as_they_are or not local else getattr(tensor, "_local_tensor", tensor)
        for number, tensor in enumerate(wanted.values())
    ]
    return tree, [*parts, *rest]


def _handed_over(tree: Tree) -> set[Ref]:
    """Tensors that are not put into those of the training but given to a `load_state_dict`: it wants them as it gave them."""
    states = [average["state"] for average in tree["averages"] if "state" in average]
    return {ref for _, ref in refs_in([states, tree.get("gradients")])}


def load_shards(folder: Path, wanted: dict[str, Any]) -> None:
    """Read into tensors that are there, each rank its part. Raises StorageError."""
    dcp = _dcp()
    alone = {"no_dist": True} if "no_dist" in inspect.signature(dcp.load).parameters else {}  # nothing has to be agreed upon
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that one process reads it
        try:
            dcp.load(wanted, storage_reader=dcp.FileSystemReader(folder), **alone)
        except (Exception, dcp.CheckpointException) as error:  # noqa: BLE001 - torch raises of many kinds
            raise StorageError(f"{folder} cannot be read: {_first_of(error)}", fix="use an older checkpoint") from None


def places_of(live: Reading) -> dict[str, Source]:
    """The tensors of a living training by name."""
    names = name_tensors(live.tree, [source.spec for source in live.sources])
    return {name: live.sources[ref.number] for ref, name in names.items()}


def _room(place: Source | None, saved: Any) -> Any:
    """Memory on the host for what this rank needs of a tensor: its part if it is sharded here, else all of it."""
    size, dtype = torch.Size(saved.size), saved.properties.dtype
    if place is None or place.spec is None or _whole_size(place.spec) != size:
        return torch.empty(size, dtype=dtype)
    return around(torch.empty(place.tensor.shape, dtype=dtype), place.spec)


def _whole_size(spec: Any) -> torch.Size:
    return torch.Size(spec.metadata().size if hasattr(spec, "local_shards") else spec.shape)


def _index(folder: Path) -> dict[str, Any]:
    """What `shards/` holds. Its index is a pickle: one that would run code is refused before it is opened."""
    contents = open_checkpoint(folder)
    if contents.state not in ("clean", "non-finite"):
        trouble = contents.troubles[0]
        raise StorageError(f"{folder} cannot be read: {trouble.words}", fix=trouble.fix)
    return dict(_dcp().FileSystemReader(folder).read_metadata().state_dict_metadata)


# A state that was saved whole, for a training that is sharded


def cut_to_parts(tree: Tree, hosts: Sequence[torch.Tensor], live: Reading) -> list[torch.Tensor]:
    """This rank's part of each tensor that is sharded in the living training; the others as they are."""
    names = name_tensors(live.tree, [source.spec for source in live.sources])
    places, cut = places_of(live), list(hosts)
    for saved, living in zip(tree["optimizers"], live.tree["optimizers"], strict=False):
        for number, state in saved["state"].items():
            owner = living["parameters"].get(number)
            for _, ref in refs_in(state):
                cut[ref.number] = _part(hosts[ref.number], places.get(names[owner]) if owner is not None else None)
    as_they_are = _handed_over(tree)
    for ref, name in name_tensors(tree, [None] * len(hosts)).items():
        if name in places:
            part = _part(hosts[ref.number], places[name])
            sharded = places[name].spec is not None and ref in as_they_are
            cut[ref.number] = _dtensor(part, places[name].spec) if sharded else part
    return cut


def _part(whole: torch.Tensor, place: Source | None) -> torch.Tensor:
    spec = place.spec if place is not None else None
    if place is None or spec is None or torch.Size(spec.shape) != whole.shape:
        return whole
    place_of = _from_tensor("compute_local_shape_and_global_offset", "._utils")
    shape, offset = place_of(spec.shape, spec.mesh, spec.placements)
    for dim, (begin, length) in enumerate(zip(offset, shape, strict=True)):
        whole = whole.narrow(dim, min(begin, whole.shape[dim]), length)
    if whole.shape != place.tensor.shape:
        raise CannotRestore("a parameter is sharded in a way that is not understood", fix="")
    return whole.contiguous()


def _dcp() -> Any:
    """Imported when it is needed: it is large, and not every build of torch has it."""
    return importlib.import_module("torch.distributed.checkpoint")


def _dtensor(local: torch.Tensor, spec: Any) -> Any:
    """A part with its place; the functions that torch has for it would move it to the mesh's device."""
    return _from_tensor("DTensor")(local, spec, requires_grad=False)


def _from_tensor(name: str, part: str = "") -> Any:
    """Something of torch's sharded tensors, which have moved since torch 2.4."""
    for package in ("torch.distributed.tensor", "torch.distributed._tensor"):
        with contextlib.suppress(ImportError):
            module = importlib.import_module(package + part)
            if hasattr(module, name):
                return getattr(module, name)
    raise CannotRestore(f"this build of torch has no {name}", fix="")


def _first_of(error: BaseException) -> str:
    """The first thing that failed, of all that failed on all ranks."""
    failures = getattr(error, "failures", None)
    if failures:
        rank, (cause, _) = next(iter(failures.items()))
        return f"rank {rank}: {type(cause).__name__}: {cause}"
    return f"{type(error).__name__}: {error}"
