"""Names for the tensors of a sharded state, the same on every rank, and a tree in which they stand for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from holdfast.inside.saving.parts import numbered
from holdfast.inside.snapshots.plain import Ref, put_together
from holdfast.inside.snapshots.reading import Tree

_MARK = "in shards"  # ("in shards", name) stands where a tensor was
_KINDS = {"models": "model", "averages": "average"}


def name_tensors(tree: Tree, specs: Sequence[Any]) -> dict[Ref, str]:
    """A name for each tensor of models, averages and optimizers, and for whatever else is sharded.

    "model.0.weight", "optimizer.0.weight.exp_avg"; a tensor that stands in two places has one name.
    """
    names: dict[Ref, str] = {}
    for kind, prefix in _KINDS.items():
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


def refs_in(tree: Any, path: str = "") -> Iterator[tuple[str, Ref]]:
    """Each numbered tensor in a tree, with the way to it."""
    if isinstance(tree, Ref):
        yield path, tree
    elif isinstance(tree, dict):
        for name, inner in tree.items():
            yield from refs_in(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(tree, (list, tuple)):
        for number, inner in enumerate(tree):
            yield from refs_in(inner, f"{path}.{number}" if path else str(number))


def marked(tree: Tree, names: Mapping[Ref, str], hosts: Sequence[torch.Tensor]) -> Tree:
    """The tree for training.pt: names where tensors are in `shards/`, the tensors themselves elsewhere."""

    def leaf(ref: Ref) -> Any:
        return (_MARK, names[ref]) if ref in names else hosts[ref.number]

    return {**put_together(tree, leaf, arrays=False), "sharded": True}


def marks_in(tree: Tree) -> Iterator[tuple[str, str]]:
    """Each name in such a tree, and that of the parameter whose state it is, if it is one."""
    for saved in tree["optimizers"]:
        for number, state in saved["state"].items():
            owner = saved["parameters"].get(number)
            for name in _names_in(state):
                yield name, owner[1] if _is_mark(owner) else ""
    for name in _names_in(tree):
        yield name, ""


def with_refs(tree: Tree, names: Sequence[str]) -> tuple[Tree, list[torch.Tensor]]:
    """The tree with numbers: of `names` first, then of the tensors that it holds itself, which are returned."""
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


def _is_mark(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and value[0] == _MARK


def _names_in(tree: Any) -> Iterator[str]:
    if _is_mark(tree):
        yield tree[1]
    elif isinstance(tree, (dict, list, tuple)):
        for inner in tree.values() if isinstance(tree, dict) else tree:
            yield from _names_in(inner)
