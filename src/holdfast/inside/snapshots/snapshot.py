"""One snapshot: a copy of the training's state in host memory, offered only once it is known to be whole and finite."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from holdfast.inside.saving.parts import to_parts
from holdfast.inside.snapshots.host_copy import Block, Source, Underway
from holdfast.inside.snapshots.reading import Tree


@dataclass(slots=True, eq=False)
class Snapshot:
    """The state before the update of step `step`. `verified` is None until it was looked at."""

    step: int
    tree: Tree
    hosts: list[torch.Tensor]
    block: Block
    underway: list[Underway]
    verified: bool | None = None
    path: Path | None = None  # where it was written to, if it was
    users: int = 0  # jobs that read it now, in other threads: its memory must not be used again
    checking: threading.Lock = field(default_factory=threading.Lock)

    def verify(self) -> bool:
        """Whether it can be restored: wait until the copies are there, and look for numbers that are not finite."""
        with self.checking:
            if self.verified is None:
                for copies in self.underway:
                    copies.wait()
                finite = self.block.is_finite()
                if self.verified is None:  # it may have been found torn meanwhile
                    self.verified = finite
            return self.verified

    def copied(self) -> bool:
        """Whether all copies are there; does not wait."""
        return all(copies.done() for copies in self.underway)

    def parts(self) -> dict[str, Any]:
        """The state as the files of a checkpoint."""
        return to_parts(self.tree, self.hosts)


class Pending:
    """Copies that still read the training's tensors: nothing but an update may change those, and it waits.

    Their memory is held meanwhile, also where the training gives a tensor other memory or drops it.
    """

    def __init__(self, snapshot: Snapshot, sources: list[Source]) -> None:
        self.snapshot = snapshot
        self._tensors = [source.tensor.detach() for source in sources if source.steady and source.tensor.is_cuda]
        self._versions = [tensor._version for tensor in self._tensors]

    def finish(self) -> None:
        """Before an update, or when the copies are there: what changed since then may have been copied half old, half new."""
        if any(tensor._version != version for tensor, version in zip(self._tensors, self._versions, strict=True)):
            self.snapshot.verified = False
        self._tensors, self._versions = [], []
