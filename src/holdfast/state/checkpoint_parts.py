"""A training's state as the files of a checkpoint, written and read back.

Weights are named as in the model's own `state_dict`, optimizers and scalers are as their own `state_dict` would be, so that a
checkpoint can be used without Holdfast: `optimizer.load_state_dict(torch.load("training.pt")["optimizers"][0])`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoints import spare
from holdfast.checkpoints.manifest import read_manifest
from holdfast.checkpoints.read import read_checkpoint, verify_checkpoint
from holdfast.checkpoints.safetensors import Tensors, can_hold
from holdfast.checkpoints.write import named_tensors, write_checkpoint
from holdfast.errors import CannotRestore, StorageError
from holdfast.state.host_copy import HostCopy
from holdfast.state.ranks import current_rank, world_size
from holdfast.state.values import Ref, Tree, flatten, flatten_all, refs_in, unflatten

_ORDER = ("step", "epoch", "optimizers", "schedulers", "scalers", "loader")  # what people look for first in training.pt
_IN_WEIGHTS = ("parameters", "buffers", "extra_state")
Moved = Callable[[], None]
IN_SHARDS = ("models", "averages", "optimizers", "gradients")  # what a sharded checkpoint keeps in `shards/`


def numbered(name: str, number: int) -> str:
    """The name of the n-th object of a kind: "model", "model-1"."""
    return name if number == 0 else f"{name}-{number}"


def to_parts(tree: Tree, hosts: Sequence[torch.Tensor]) -> dict[str, Any]:
    """The contents of a checkpoint's files by stem: `Tensors`, or what `torch.save` takes. Nothing is stored twice."""
    parts: dict[str, Any] = {}
    in_weights: set[Ref] = set()
    training = {name: value for name, value in tree.items() if name not in ("models", "averages", "optimizers", "scalers")}
    for what, kind in (("weights", "models"), ("averages", "averages")):
        rest = []
        for number, saved in enumerate(tree[kind]):
            tensors, apart = _split(saved, hosts)
            if tensors or what == "weights":
                parts[numbered(what, number)] = _tensors(tensors, hosts)
                in_weights.update(tensors.values())
            rest.append(apart)
        training[f"{kind}_apart"] = rest
    training["optimizers"] = [{name: saved[name] for name in ("state", "param_groups")} for saved in tree["optimizers"]]
    training["own_parameters"] = [
        {number: ref for number, ref in saved["parameters"].items() if ref not in in_weights} for saved in tree["optimizers"]
    ]
    training["named_parameters"] = _named_parameters(tree)
    training["scalers"] = [
        unflatten(saved["numbers"], lambda ref: hosts[ref.number].item()) if "numbers" in saved else saved["state"]
        for saved in tree["scalers"]
    ]
    ordered = {name: training[name] for name in (*(first for first in _ORDER if first in training), *training)}
    return {**parts, "training": unflatten(ordered, lambda ref: hosts[ref.number], arrays=False)}


def _named_parameters(tree: Tree) -> list[dict[int, tuple[int, str]]]:
    """The model and name of each optimizer's parameters: the order of several optimizers, and of one's parameters, may change."""
    names = {ref: (number, name) for number, model in enumerate(tree["models"]) for name, ref in model["parameters"].items()}
    return [{number: names[ref] for number, ref in saved["parameters"].items() if ref in names} for saved in tree["optimizers"]]


def to_sharded_part(tree: Tree, hosts: Sequence[torch.Tensor], prefix: str = "") -> tuple[dict[str, Any], dict[str, Ref]]:
    """The content of training.pt for a sharded state, with a number for each tensor in `shards/`, and these tensors by name."""
    kept_apart = {kind: tree[kind] for kind in IN_SHARDS if kind in tree}
    names: dict[Ref, str] = {}
    for place, ref in refs_in(kept_apart):
        kind, number, part, *rest = place.split(".", 3)
        inside = ".".join(rest) if kind in ("models", "averages") and rest else ".".join((part, *rest))
        names.setdefault(ref, f"{prefix}{numbered(kind.removesuffix('s'), int(number))}.{inside}")
    places = {ref: number for number, ref in enumerate(names)}
    rest_of_tree = {name: [] if name in IN_SHARDS else value for name, value in tree.items() if name != "gradients"}
    training = to_parts(rest_of_tree, hosts)["training"]
    sharded = unflatten(kept_apart, lambda ref: torch.tensor(places[ref]), arrays=False)
    return {**training, "sharded": sharded, "names": list(names.values())}, {name: ref for ref, name in names.items()}


def from_parts(parts: Mapping[str, Any]) -> tuple[Tree, list[Any]]:
    """The tree and tensors of a state; of a sharded one, a name in place of each tensor in `shards/`."""
    training = parts["training"]
    apart = ("_apart", "own_parameters", "named_parameters", "sharded", "names", "randomness")  # generators are set, not copied
    content = {name: value for name, value in training.items() if not name.endswith(apart)}
    content["models"] = _joined("weights", parts, training["models_apart"])
    content["averages"] = _joined("averages", parts, training["averages_apart"])
    own = zip(training["optimizers"], training["own_parameters"], strict=True)
    content["optimizers"] = [{**state, "parameters": dict(parameters)} for state, parameters in own]
    for optimizer, named in zip(content["optimizers"], training.get("named_parameters", ()), strict=False):
        weights = {number: content["models"][model]["parameters"].get(name) for number, (model, name) in named.items()}
        optimizer["parameters"] |= {number: tensor for number, tensor in weights.items() if tensor is not None}
    content["scalers"] = [{"state": state} for state in training["scalers"]]
    tree, hosts = flatten_all(content, lambda tensor: (tensor.data_ptr() or id(tensor), tensor.shape, tensor.dtype))
    first = len(hosts)
    tree |= flatten(training.get("sharded", {}), lambda number: Ref(first + int(number)))
    return {**tree, "randomness": training.get("randomness")}, [*hosts, *training.get("names", ())]


@dataclass(slots=True)
class SavedState:
    """The state in a checkpoint. `position` is the position in the data."""

    tree: Tree
    hosts: list[Any]  # tensors, or names of tensors in `shards/`
    position: Any
    has_randomness: bool  # False if the checkpoint has none for this rank

    @classmethod
    def of(cls, path: Path, parts: dict[str, Any]) -> SavedState:
        """The state in a checkpoint for this rank. Raises CannotRestore."""
        rank, ranks = current_rank(), parts["training"].get("ranks", {})
        before = (read_manifest(path) or {}).get("world_size", 1)
        if parts["training"].get("by_rank") and before != world_size():
            text = f"FullyShardedDataParallel saved it on {before} ranks: only as many can resume (with fully_shard any number)"
            raise CannotRestore(text, fix="")
        own = ranks.get(rank, {}) if before == world_size() else {}
        training = {name: value for name, value in {**parts["training"], **own}.items() if name not in ("ranks", "by_rank")}
        tree, hosts = from_parts({**parts, "training": training})
        has_randomness = bool(own) or rank == 0 or tree["randomness"] is None
        return cls(tree, hosts, unflatten(tree.pop("loader", None), lambda ref: hosts[ref.number].clone()), has_randomness)


def _split(saved: Tree, hosts: Sequence[torch.Tensor]) -> tuple[dict[str, Ref], Tree]:
    """The tensors of a module for its safetensors file, and the rest, for training.pt."""
    if "state" in saved:
        return {}, saved
    tensors = {name: ref for kind in _IN_WEIGHTS for name, ref in saved[kind].items() if isinstance(ref, Ref)}
    unsupported = {name: ref for name, ref in tensors.items() if not can_hold(hosts[ref.number].dtype)}
    extra = {name: value for name, value in saved["extra_state"].items() if not isinstance(value, Ref)}
    rest = {"other_buffers": {**saved["other_buffers"], **unsupported}, "extra_state": extra}
    return {name: ref for name, ref in tensors.items() if name not in unsupported}, rest


def _tensors(named: Mapping[str, Ref], hosts: Sequence[torch.Tensor]) -> Tensors:
    first: dict[Ref, str] = {}
    for name, ref in named.items():
        first.setdefault(ref, name)
    tied = {name: first[ref] for name, ref in named.items() if first[ref] != name}
    return Tensors({name: hosts[ref.number] for ref, name in first.items()}, tied)


def _joined(what: str, parts: Mapping[str, Any], apart: Sequence[Tree]) -> list[Tree]:
    return [
        rest if "state" in rest else {"parameters": parts.get(numbered(what, number), {}), **rest}
        for number, rest in enumerate(apart)
    ]


# Writing


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
    read_back(path, moved)
    return path


def read_back(path: Path, moved: Moved) -> None:
    """Verify a checkpoint that was just written; remove it if it cannot be loaded."""
    try:
        verify_checkpoint(path, from_disk=True, moved=moved)
        read_checkpoint(path, verify=False)  # it must load, too
    except StorageError:
        spare.remove(path)
        raise
