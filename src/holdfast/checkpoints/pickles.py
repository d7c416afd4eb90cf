"""Read a pickle without running anything that is in it: what it holds, which names it asks for, and where it breaks off.

Python's unpickler imports what a stream names and calls it; that is how a checkpoint can run a program. Here the stream is
followed by a machine of our own (`pickled/`), which knows what tensors and plain containers look like and describes the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import IO, Any

from holdfast.checkpoints.contents import TensorInfo
from holdfast.checkpoints.pickled.legacy import Legacy, read_legacy
from holdfast.checkpoints.pickled.machine import Findings, Machine
from holdfast.checkpoints.pickled.nodes import StorageUse
from holdfast.checkpoints.pickled.opcodes import Source
from holdfast.checkpoints.pickled.trees import Listing

TOO_MUCH = "it is nested too deeply, or refers to itself too often, to be listed in full"


@dataclass(slots=True, kw_only=True)
class Unpickled:
    """What a pickle holds. With a `problem` the tree is what was understood up to there."""

    tree: Any = None
    tensors: list[TensorInfo] = field(default_factory=list)
    storages: list[StorageUse] = field(default_factory=list)  # `TensorInfo.storage` is a place in here
    refused: list[str] = field(default_factory=list)
    needs_code: list[str] = field(default_factory=list)
    problem: str | None = None  # after "the pickle cannot be followed: "
    cut: bool = False  # the stream ends before its end
    end: int = 0  # offset behind it


def read_pickle(
    stream: IO[bytes],
    *,
    storages: list[StorageUse] | None = None,
    start: int = 0,
    end: int | None = None,
    located: bool = True,
    found: Findings | None = None,
) -> Unpickled:
    """Read one pickle from `start`, not beyond `end`. Nothing in it is executed, ever.

    Storages that it names are added to `storages` in the order in which they are met. `located` says that offsets in the stream
    are those of the checkpoint's file. Pickles that share a `found` share its limits. Raises OSError only.
    """
    found = Findings(storages) if found is None else found
    machine = Machine(Source(stream, start, end, located=located), found).run()
    told = list_tree(machine.value, found)
    told.problem, told.cut, told.end = machine.problem or told.problem, machine.cut, machine.source.offset
    return told


def read_old(stream: IO[bytes], size: int) -> tuple[Unpickled, Legacy]:
    """Read a file of the older form, or a bare pickle: what it holds, and where its storages lie."""
    found = Findings()
    legacy = read_legacy(Source(stream, 0, size), found, Machine, size=size)
    told = list_tree(legacy.value, found)
    told.problem, told.cut, told.end = legacy.problem or told.problem, legacy.cut, legacy.end
    return told, legacy


def list_tree(value: Any, found: Findings) -> Unpickled:
    """The plain tree of what a machine has read."""
    listing = Listing(found.spent)
    tree = listing.tree(value)
    if listing.getattr_named:
        found.refuse("builtins.getattr")
    problem = None if listing.complete else TOO_MUCH
    return Unpickled(
        tree=tree,
        tensors=listing.tensors,
        storages=found.storages,
        refused=list(found.refused),
        needs_code=_without(found.needs_code, found.refused),
        problem=problem,
    )


def _without(names: Iterable[str], others: Iterable[str]) -> list[str]:
    known = set(others)
    return [name for name in names if name not in known]
