"""Sharded states: all ranks write them with `torch.distributed.checkpoint`; any number of ranks can read them.

    step-000123/
      shards/         the tensors of models, averages and optimizers, each rank's shards
      training.pt     everything else, with names in place of these tensors

A tensor has the same name on every rank, and a shard knows its place in the whole, so that any number of ranks can read what
they need. `shards/` holds only tensors: reading them runs no code.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.errors import CannotRestore, StorageError
from holdfast.state.host_copy import HostCopy, LiveState, Source
from holdfast.state.values import Ref, Tree, refs_in, unflatten

SHARDS = "shards"
_CHUNK = 1 << 22  # bytes
_MARK = "in shards"  # ("in shards", name) replaces a tensor
_PREFIXES = {"models": "model", "averages": "average"}


def numbered(name: str, number: int) -> str:
    """The name of the n-th object of a kind: "model", "model-1"."""
    return name if number == 0 else f"{name}-{number}"


def name_tensors(tree: Tree, specs: Sequence[Any]) -> dict[Ref, str]:
    """Name each tensor of models, averages and optimizers, and any other sharded one.

    "model.0.weight", "optimizer.0.weight.exp_avg"; a tensor in two places has one name.
    """
    names: dict[Ref, str] = {}
    for kind, prefix in _PREFIXES.items():
        for number, saved in enumerate(tree[kind]):
            for part in saved.values():
                for path, ref in refs_in(part):
                    names.setdefault(ref, f"{numbered(prefix, number)}.{path}")
    for number, saved in enumerate(tree["optimizers"]):
        prefix = numbered("optimizer", number)
        owners = {key: names.get(ref, f".{key}").partition(".")[2] for key, ref in saved["parameters"].items()}
        for key, state in saved["state"].items():
            for path, ref in refs_in(state):
                names.setdefault(ref, f"{prefix}.{owners.get(key, key)}.{path}")
        for path, ref in refs_in(saved):
            names.setdefault(ref, f"{prefix}.{path}")
    for path, ref in refs_in(tree):
        if specs[ref.number] is not None:
            names.setdefault(ref, path)
    return names


# Writing: all ranks at once, in the background


def write_shards(folder: Path, copy: HostCopy, names: Mapping[Ref, str], group: Any) -> None:
    """Write this rank's shards; rank 0 writes what is not sharded. A failure is raised on all ranks."""
    dcp = _dcp()
    leads = torch.distributed.get_rank(group) == 0
    tensors = {
        name: _as_shard(copy.hosts[ref.number], copy.specs[ref.number])
        for ref, name in names.items()
        if copy.specs[ref.number] is not None or leads
    }
    try:
        dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder, sync_files=True), process_group=group)
    except dcp.CheckpointException as error:  # not an Exception
        raise StorageError(
            f"{folder} could not be written: {_first_failure(error)}", fix="free some space, or check the disk"
        ) from None


def training_part(copy: HostCopy, names: Mapping[Ref, str]) -> Tree:
    """The content of training.pt: names for tensors in `shards/`, and the other tensors."""

    def leaf(ref: Ref) -> Any:
        return (_MARK, names[ref]) if ref in names else copy.hosts[ref.number]

    return {**unflatten(copy.tree, leaf, arrays=False), "sharded": True}


def files_of(folder: Path, rank: int) -> dict[str, dict[str, Any]]:
    """Size and checksum of the files that a rank wrote."""
    own = [path for path in folder.iterdir() if path.name.startswith(f"__{rank}_") or (rank == 0 and path.name == ".metadata")]
    return {f"{SHARDS}/{path.name}": _checksum(path) for path in sorted(own)}


def _checksum(path: Path) -> dict[str, Any]:
    crc, size = 0, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return {"size": size, "crc32": f"{crc:08x}", "tensors": {}}


# Reading: each rank for itself


def from_shards(folder: Path, training: Tree, live: LiveState, *, local: bool) -> tuple[Tree, list[torch.Tensor]]:
    """The tree and tensors of a sharded checkpoint; tensors that are sharded in the live training as shards.

    With `local` a shard is a plain tensor, else a DTensor or ShardedTensor.
    """
    places, saved = _sources_by_name(live), _index(folder / SHARDS)
    wanted: dict[str, Any] = {}
    for name, owner in _marks_in(training):
        if name not in saved:
            raise StorageError(f"{folder / SHARDS} does not hold {name}.", fix="use an older checkpoint")
        if name not in wanted:
            wanted[name] = _memory_for(places.get(name) or places.get(owner), saved[name])
    _load(folder / SHARDS, wanted)
    tree, rest = _with_refs(training, list(wanted))
    loaded = _for_load_state_dict(tree)
    parts = [
        tensor if Ref(number) in loaded or not local else getattr(tensor, "_local_tensor", tensor)
        for number, tensor in enumerate(wanted.values())
    ]
    return tree, [*parts, *rest]


def _load(folder: Path, wanted: dict[str, Any]) -> None:
    """Read into existing tensors. Raises StorageError."""
    dcp = _dcp()
    alone = {"no_dist": True} if "no_dist" in inspect.signature(dcp.load).parameters else {}  # no collectives
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about reading without a process group
        try:
            dcp.load(wanted, storage_reader=dcp.FileSystemReader(folder), **alone)
        except (Exception, dcp.CheckpointException) as error:  # noqa: BLE001 - torch raises many types
            raise StorageError(f"{folder} cannot be read: {_first_failure(error)}", fix="use an older checkpoint") from None


def _for_load_state_dict(tree: Tree) -> set[Ref]:
    """Tensors for a `load_state_dict`, which expects them in the form of `state_dict`."""
    states = [average["state"] for average in tree["averages"] if "state" in average]
    return {ref for _, ref in refs_in([states, tree.get("gradients")])}


def _sources_by_name(live: LiveState) -> dict[str, Source]:
    """The tensors of a live training by name."""
    names = name_tensors(live.tree, [source.spec for source in live.sources])
    return {name: live.sources[ref.number] for ref, name in names.items()}


def _memory_for(place: Source | None, saved: Any) -> Any:
    """Host memory for this rank's shard of a tensor, or for all of it if it is not sharded here."""
    size, dtype = torch.Size(saved.size), saved.properties.dtype
    if place is None or place.spec is None or _full_size(place.spec) != size:
        return torch.empty(size, dtype=dtype)
    return _as_shard(torch.empty(place.tensor.shape, dtype=dtype), place.spec)


def _full_size(spec: Any) -> torch.Size:
    return torch.Size(spec.metadata().size if hasattr(spec, "local_shards") else spec.shape)


def _index(folder: Path) -> dict[str, Any]:
    """The index of `shards/`. It is a pickle: one that would run code is refused before it is read."""
    contents = open_checkpoint(folder)
    if contents.state not in ("clean", "non-finite"):
        trouble = contents.troubles[0]
        raise StorageError(f"{folder} cannot be read: {trouble.words}", fix=trouble.fix)
    return dict(_dcp().FileSystemReader(folder).read_metadata().state_dict_metadata)


def _marks_in(tree: Tree) -> Iterator[tuple[str, str]]:
    """Each name in training.pt, and the name of its parameter if it is optimizer state."""
    for saved in tree["optimizers"]:
        for number, state in saved["state"].items():
            owner = saved["parameters"].get(number)
            for name in _names_in(state):
                yield name, owner[1] if _is_mark(owner) else ""
    for name in _names_in(tree):
        yield name, ""


def _names_in(tree: Any) -> Iterator[str]:
    if _is_mark(tree):
        yield tree[1]
    elif isinstance(tree, (dict, list, tuple)):
        for inner in tree.values() if isinstance(tree, dict) else tree:
            yield from _names_in(inner)


def _is_mark(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and value[0] == _MARK


def _with_refs(tree: Tree, names: Sequence[str]) -> tuple[Tree, list[torch.Tensor]]:
    """The tree with a `Ref` for each of `names`, then for its own tensors, which are returned."""
    numbers, tensors = {name: Ref(number) for number, name in enumerate(names)}, list[torch.Tensor]()

    def walk(value: Any) -> Any:
        if _is_mark(value):
            return numbers[value[1]]
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return Ref(len(numbers) + len(tensors) - 1)
        if isinstance(value, dict):
            return {name: walk(inner) for name, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(walk(inner) for inner in value)
        return value

    whole = {name: value if name == "randomness" else walk(value) for name, value in tree.items() if name != "sharded"}
    return whole, tensors


# A full state for a sharded training


def shard_tensors(tree: Tree, hosts: Sequence[torch.Tensor], live: LiveState) -> list[torch.Tensor]:
    """This rank's shard of each tensor that is sharded in the live training; the others whole."""
    names = name_tensors(live.tree, [source.spec for source in live.sources])
    places, cut = _sources_by_name(live), list(hosts)
    for saved, current in zip(tree["optimizers"], live.tree["optimizers"], strict=False):
        for number, state in saved["state"].items():
            owner = current["parameters"].get(number)
            for _, ref in refs_in(state):
                cut[ref.number] = _part(hosts[ref.number], places.get(names[owner]) if owner is not None else None)
    loaded = _for_load_state_dict(tree)
    for ref, name in name_tensors(tree, [None] * len(hosts)).items():
        if name in places:
            part = _part(hosts[ref.number], places[name])
            cut[ref.number] = _as_shard(part, places[name].spec) if ref in loaded else part
    return cut


def _part(whole: torch.Tensor, place: Source | None) -> torch.Tensor:
    spec = place.spec if place is not None else None
    if place is None or spec is None or torch.Size(spec.shape) != whole.shape:
        return whole
    shape, offset = _torch_tensor("compute_local_shape_and_global_offset", "._utils")(spec.shape, spec.mesh, spec.placements)
    for dim, (begin, length) in enumerate(zip(offset, shape, strict=True)):
        whole = whole.narrow(dim, min(begin, whole.shape[dim]), length)
    if whole.shape != place.tensor.shape:
        raise CannotRestore("a parameter's sharding is not supported", fix="")
    return whole.contiguous()


def _as_shard(host: torch.Tensor, spec: Any) -> Any:
    """A rank's host tensor as a DTensor or ShardedTensor, which knows its place in the whole."""
    if spec is None:
        return host
    if hasattr(spec, "local_shards"):  # a ShardedTensor that was made for this save
        for shard in spec.local_shards():
            shard.tensor = host
        return spec
    return _torch_tensor("DTensor")(host, spec, requires_grad=False)  # from_local would move it to the mesh's device


def _dcp() -> Any:
    """Imported on use: it is large, and not every build of torch has it."""
    return importlib.import_module("torch.distributed.checkpoint")


def _torch_tensor(name: str, module: str = "") -> Any:
    """A name from torch's DTensor package, which has moved since torch 2.4."""
    for package in ("torch.distributed.tensor", "torch.distributed._tensor"):
        with contextlib.suppress(ImportError):
            found = importlib.import_module(package + module)
            if hasattr(found, name):
                return getattr(found, name)
    raise CannotRestore(f"this build of torch has no {name}", fix="")


def _first_failure(error: BaseException) -> str:
    """The first failure of all ranks."""
    failures = getattr(error, "failures", None)
    if failures:
        rank, (cause, _) = next(iter(failures.items()))
        return f"rank {rank}: {type(cause).__name__}: {cause}"
    return f"{type(error).__name__}: {error}"
