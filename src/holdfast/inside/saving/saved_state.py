"""A checkpoint as a state that fits the living training: whole or in parts, and of what each rank kept for itself, its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoints.manifest import read_manifest
from holdfast.inside.ranks import current_rank, world_size
from holdfast.inside.saving.fsdp1 import FlatState
from holdfast.inside.saving.parts import from_parts
from holdfast.inside.snapshots.plain import put_together
from holdfast.inside.snapshots.reading import Tree
from holdfast.inside.snapshots.state import TrainingState


@dataclass(frozen=True, slots=True)
class SavedState:
    """The tree of a state and its tensors. `position` is where the loader was, in plain containers."""

    tree: Tree
    hosts: list[torch.Tensor]
    position: Any
    gradients: Any  # those that wait for their update, if any do
    has_randomness: bool  # what is kept of another rank, or of another number of ranks, is not this rank's

    @classmethod
    def of(cls, path: Path, parts: dict[str, Any], live: TrainingState) -> SavedState:
        """What a checkpoint holds, as the living training needs it. Raises StorageError and CannotRestore."""
        if parts["training"].get("sharded"):
            from holdfast.inside.saving.sharded import from_shards

            tree, hosts = from_shards(path, parts["training"], live.read(), local=not isinstance(live, FlatState))
        else:
            tree, hosts = from_parts(parts)
            if live.is_sharded() and not isinstance(live, FlatState):
                from holdfast.inside.saving.sharded import cut_to_parts

                hosts = cut_to_parts(tree, hosts, live.read())
        ranks, position, gradients = tree.pop("ranks", {}), tree.pop("loader", None), tree.pop("gradients", None)
        rank, same = current_rank(), (read_manifest(path) or {}).get("world_size", 1) == world_size()
        own = _plain(ranks[rank], hosts) if same and rank in ranks else {}
        tree["randomness"] = own.get("randomness", tree.get("randomness"))
        has_randomness = bool(own) or rank == 0 or tree["randomness"] is None
        return cls(tree, hosts, own.get("loader", _plain(position, hosts)), _plain(gradients, hosts), has_randomness)


def _plain(tree: Any, hosts: list[torch.Tensor]) -> Any:
    return put_together(tree, lambda ref: hosts[ref.number].clone())
