"""A training's state as the files of a checkpoint, and back.

Weights are named as in the model's own `state_dict`, optimizers and scalers are as their own `state_dict` would be, so that a
checkpoint can be used without Holdfast: `optimizer.load_state_dict(torch.load("training.pt")["optimizers"][0])`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoints.manifest import read_manifest
from holdfast.checkpoints.safetensors import Tensors, can_hold
from holdfast.state.ranks import current_rank, world_size
from holdfast.state.values import Ref, Tree, flatten, flatten_all, unflatten

_ORDER = ("step", "epoch", "optimizers", "schedulers", "scalers", "loader")  # what people look for first in training.pt
_IN_WEIGHTS = ("parameters", "buffers", "extra_state")
BY_NAME = ("models", "averages", "optimizers", "gradients")  # what a sharded checkpoint keeps in `shards/`


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
    training["scalers"] = [
        unflatten(one["numbers"], lambda ref: hosts[ref.number].item()) if "numbers" in one else one["state"]
        for one in tree["scalers"]
    ]
    ordered = {name: training[name] for name in (*(first for first in _ORDER if first in training), *training)}
    return {**parts, "training": unflatten(ordered, lambda ref: hosts[ref.number], arrays=False)}


def from_parts(parts: Mapping[str, Any]) -> tuple[Tree, list[torch.Tensor]]:
    """The tree and tensors of a state. Of a sharded one, a `Ref` in `BY_NAME` is a tensor by its number in `names`."""
    training = parts["training"]
    apart = ("_apart", "own_parameters", "sharded", "randomness")  # generator states are set, not copied
    content = {name: value for name, value in training.items() if not name.endswith(apart)}
    if "sharded" in training:
        tree, hosts = flatten_all(content)
        by_name = flatten(training["sharded"], lambda number: Ref(int(number)))
        return {**tree, **by_name, "randomness": training["randomness"]}, hosts
    content["models"] = _joined("weights", parts, training["models_apart"])
    content["averages"] = _joined("averages", parts, training["averages_apart"])
    own = zip(training["optimizers"], training["own_parameters"], strict=True)
    content["optimizers"] = [{**state, "parameters": parameters} for state, parameters in own]
    content["scalers"] = [{"state": state} for state in training["scalers"]]
    tree, hosts = flatten_all(content, lambda tensor: (tensor.data_ptr() or id(tensor), tensor.shape, tensor.dtype))
    return {**tree, "randomness": training.get("randomness")}, hosts


@dataclass(slots=True)
class SavedState:
    """The state in a checkpoint. `position` is the position in the data."""

    tree: Tree
    hosts: list[torch.Tensor]
    position: Any
    gradients: Any  # accumulated before the save, if any
    has_randomness: bool  # False if the checkpoint has none for this rank
    names: list[str] = field(default_factory=list)  # of the tensors in `shards/`

    @classmethod
    def of(cls, path: Path, parts: dict[str, Any]) -> SavedState:
        """The state in a checkpoint for this rank."""
        tree, hosts = from_parts(parts)
        names, ranks, position = tree.pop("names", []), tree.pop("ranks", {}), tree.pop("loader", None)
        gradients = None if names else _plain(tree.get("gradients"), hosts)
        rank, same = current_rank(), (read_manifest(path) or {}).get("world_size", 1) == world_size()
        own = _plain(ranks[rank], hosts) if same and rank in ranks else {}
        tree["randomness"] = own.get("randomness", tree.get("randomness"))
        has_randomness = bool(own) or rank == 0 or tree["randomness"] is None
        return cls(tree, hosts, own.get("loader", _plain(position, hosts)), gradients, has_randomness, names)


def _plain(tree: Any, hosts: list[torch.Tensor]) -> Any:
    return unflatten(tree, lambda ref: hosts[ref.number].clone())


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
