"""What lies in a checkpoint, whoever wrote it: its tensors, where their bytes are, and a plain tree of everything else.

    open_checkpoint(path) -> Contents      formats/open.py; reads indexes only, no tensor, and runs nothing
    verify(contents) -> Verdict            verify.py; reads every byte once

A tree holds dicts with keys of any plain kind, lists, tuples, scalars, and two kinds of leaf: `TensorInfo` for a tensor and
`Opaque` for an object of a class that is not plain, which is described and never made.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from holdfast.checkpoints.harmless import ITEM_SIZES

State = Literal["clean", "non-finite", "torn", "unreadable", "unsafe"]
WORST_LAST: tuple[State, ...] = get_args(State)


@dataclass(frozen=True, slots=True)
class Storage:
    """A stretch of bytes in a file that holds numbers of one kind; several tensors may lie in it."""

    file: Path
    offset: int  # bytes from the beginning of the file
    size: int  # bytes
    dtype: str  # as torch writes it, without "torch.": float32, bfloat16, int64 …
    crc32: int | None = None  # what the format says it must be, if it says so
    name: str = ""  # how the format calls it: archive/data/0

    def read(self, begin: int, size: int) -> bytes:
        """Some of its bytes; fewer where the file ends. Raises OSError."""
        with self.file.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), size, self.offset + begin)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor: its name is its path through the tree, joined by dots ("optimizer.state.0.exp_avg")."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    storage: int  # number in `Contents.storages`
    offset: int = 0  # elements from the beginning of the storage
    stride: tuple[int, ...] | None = None  # None: contiguous

    @property
    def count(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def place(self) -> tuple[object, ...]:
        """Equal for names of one and the same tensor: where its numbers lie."""
        return self.storage, self.offset, self.shape, self.stride

    @property
    def span(self) -> tuple[int, int]:
        """From where to where in its storage it lies, in bytes."""
        size, last = ITEM_SIZES.get(self.dtype, 1), self.count - 1
        if last < 0:
            return 0, 0
        if self.stride is not None:
            last = sum((length - 1) * step for length, step in zip(self.shape, self.stride, strict=True))
        return self.offset * size, (self.offset + last + 1) * size


@dataclass(frozen=True, slots=True)
class Opaque:
    """An object that was not made, because that would run code: the name of its class or function, and what it was given."""

    name: str  # "argparse.Namespace", "ultralytics.nn.tasks.DetectionModel"
    arguments: tuple[Any, ...] = ()
    state: Any = None  # its attributes, if they are a plain tree
    nan: int = 0  # of an array of numpy: how many of its numbers are NaN, and how many infinite
    inf: int = 0


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something wrong: how bad, what it is, and what to do next."""

    state: State
    text: str
    fix: str
    where: str = ""  # a tensor, a record or a file in a folder


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file of a checkpoint."""

    path: Path
    size: int
    modified: float  # seconds since the epoch


@dataclass(slots=True, kw_only=True)
class Contents:
    """A checkpoint as far as its indexes tell. With `troubles` the rest may be missing in part or in whole."""

    path: Path
    format: str  # "torch zip", "torch legacy", "safetensors", "sharded safetensors", "torch.distributed.checkpoint", "holdfast" …
    producer: str | None = None  # "lightning", "ultralytics", "transformers", "accelerate", "holdfast", if it shows
    files: list[FileInfo] = field(default_factory=list)
    tree: Any = None
    tensors: list[TensorInfo] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    needs_code: list[str] = field(default_factory=list)  # classes whose code a full load would run; not made here
    refused: list[str] = field(default_factory=list)  # names it wants to call that no checkpoint needs: what makes it unsafe
    versions: dict[str, str] = field(default_factory=dict)  # "torch": "2.5.1", "lightning": "2.4.0", "format": "3" …
    notes: list[str] = field(default_factory=list)  # worth saying, and no trouble

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.size for file in self.files)

    @property
    def modified(self) -> float:
        """When its newest file was written."""
        return max((file.modified for file in self.files), default=0.0)

    def trouble(self, state: State, message: str, fix: str, where: str = "") -> None:
        """Add a trouble."""
        self.troubles.append(Trouble(state, message, fix, where))

    @property
    def state(self) -> State:
        """The worst of its troubles; clean as far as the indexes tell."""
        return worst(trouble.state for trouble in self.troubles)


def worst(states: Iterable[State]) -> State:
    """The worst of some states."""
    return max(states, key=WORST_LAST.index, default="clean")
