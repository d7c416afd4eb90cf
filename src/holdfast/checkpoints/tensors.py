"""Read tensors of an opened checkpoint from its files, a piece at a time.

Files are read and not mapped: one that is truncated while it is mapped would end the process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from holdfast.checkpoints.contents import Contents, Opaque, Storage, TensorInfo
from holdfast.checkpoints.formats.joining import InPieces
from holdfast.checkpoints.scanning import fill
from holdfast.errors import StorageError

_PIECE = 32 << 20  # bytes that are read at once
_SPREAD = 1 << 28  # numbers that a tensor may be spread out to, where the file holds fewer
_OTHER = "load another checkpoint, or copy this one again: holdfast checkpoints verify shows what is wrong with it"


class Tensors:
    """The tensors of a checkpoint. Use as a context: the files stay open until it ends."""

    def __init__(self, contents: Contents) -> None:
        self._storages, self._path = contents.storages, contents.path
        self._open: dict[Path, int] = {}
        self._room = bytearray()

    def __enter__(self) -> Tensors:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for descriptor in self._open.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._open.clear()

    def copy(self, info: TensorInfo, target: torch.Tensor) -> None:
        """Copy into a tensor of the same shape, on any device and of any kind. Raises StorageError."""
        if not info.count:
            return
        plain = target.detach()
        if isinstance(info, InPieces):
            self._expect_all(info)
            for part, begin in zip(info.pieces, info.begins, strict=True):
                place = tuple(slice(first, first + length) for first, length in zip(begin, part.shape, strict=True))
                self.copy(part, plain[place])
            return
        if info.stride is not None:
            plain.copy_(self._strided(info))
            return
        if not plain.is_contiguous():
            plain.copy_(self.tensor(info).view(plain.shape))
            return
        flat, at = plain.view(-1), 0
        for piece in self.pieces(info):
            flat[at : at + len(piece)].copy_(piece)
            at += len(piece)

    def pieces(self, info: TensorInfo) -> Iterator[torch.Tensor]:
        """A tensor's numbers in order. Each piece is gone when the next one comes."""
        if info.stride is not None or isinstance(info, InPieces):
            yield self.tensor(info).view(-1)
            return
        dtype, storage = _dtype(info), self._storages[info.storage]
        step = max(1, _PIECE // dtype.itemsize)
        self._expect(storage, info, info.count)
        for first in range(0, info.count, step):
            count = min(step, info.count - first)
            yield self._read(storage, (info.offset + first) * dtype.itemsize, count, dtype)

    def tensor(self, info: TensorInfo) -> torch.Tensor:
        """A tensor of its own on the host. Raises StorageError."""
        dtype, size = _dtype(info), self._storages[info.storage].size if info.count else 0
        if not info.count:
            return torch.empty(info.shape, dtype=dtype)
        if info.stride is None or isinstance(info, InPieces):
            self._expect_all(info)
            made = torch.empty(info.shape, dtype=dtype)
            self.copy(info, made)
            return made
        if info.count > max(_SPREAD, size // dtype.itemsize):
            raise StorageError(f"{info.name} in {self._path} repeats its numbers {info.count:,} times over.", fix=_OTHER)
        return self._strided(info).clone()

    def _strided(self, info: TensorInfo) -> torch.Tensor:
        """A tensor whose numbers do not lie in order, or stand for several."""
        dtype, storage, stride = _dtype(info), self._storages[info.storage], info.stride or ()
        span = 1 + sum((length - 1) * step for length, step in zip(info.shape, stride, strict=True))
        self._expect(storage, info, span)
        flat = self._read(storage, info.offset * dtype.itemsize, span, dtype, room=bytearray(span * dtype.itemsize))
        return flat.as_strided(info.shape, stride)

    def made(self, tree: Any) -> Any:
        """A tree of plain values with its tensors in it. Raises StorageError for an object that only code could make."""
        if isinstance(tree, TensorInfo):
            return self.tensor(tree)
        if isinstance(tree, dict):
            return {key: self.made(value) for key, value in tree.items()}
        if isinstance(tree, (list, tuple)):
            return type(tree)(self.made(value) for value in tree)
        if isinstance(tree, Opaque):
            raise StorageError(f"{self._path} holds an object of {tree.name}, which only its own code can create.", fix=_OTHER)
        return tree

    def _expect(self, storage: Storage, info: TensorInfo, count: int) -> None:
        """Never more than the file holds, whatever it says."""
        if (
            min(info.offset, *info.shape, *(info.stride or ()), 0) < 0
            or (info.offset + count) * _dtype(info).itemsize > storage.size
        ):
            raise StorageError(f"{info.name} in {self._path} is larger than the bytes that belong to it.", fix=_OTHER)

    def _expect_all(self, info: TensorInfo) -> None:
        """The bytes of all pieces must be there, and the pieces must make up the whole."""
        for piece in pieces_of(info):
            if piece.count and piece.stride is None:
                self._expect(self._storages[piece.storage], piece, piece.count)
        if sum(piece.count for piece in pieces_of(info)) != info.count:
            raise StorageError(f"{info.name} in {self._path} has pieces that do not cover the whole tensor.", fix=_OTHER)

    def _read(self, storage: Storage, offset: int, count: int, dtype: torch.dtype, room: bytearray | None = None) -> torch.Tensor:
        size = count * dtype.itemsize
        if room is None:
            if len(self._room) < size:
                self._room = bytearray(size)
            room = self._room
        try:
            problem = fill(self._descriptor(storage.file), memoryview(room)[:size], storage.offset + offset)
        except OSError as error:
            problem = f"it cannot be opened: {error.strerror or error}"
        if problem:
            raise StorageError(f"{storage.file}: {problem}.", fix=_OTHER)
        return torch.frombuffer(room, dtype=dtype, count=count)

    def _descriptor(self, path: Path) -> int:
        if path not in self._open:
            self._open[path] = os.open(path, os.O_RDONLY)
        return self._open[path]


def pieces_of(info: TensorInfo) -> tuple[TensorInfo, ...]:
    """The tensor itself, or the pieces that it lies in."""
    return info.pieces if isinstance(info, InPieces) else (info,)


def _dtype(info: TensorInfo) -> torch.dtype:
    dtype = getattr(torch, info.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise StorageError(f"{info.name} has a dtype that this torch does not support: {info.dtype}.", fix="update torch")
    return dtype
