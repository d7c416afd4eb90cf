"""Tensors that lie in several places, as ranks write them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.checkpoints.contents import TensorInfo


@dataclass(frozen=True, slots=True)
class InPieces(TensorInfo):
    """A tensor of the whole shape; its `storage` is that of the first piece, and holds no more than that piece."""

    pieces: tuple[TensorInfo, ...] = ()
    begins: tuple[tuple[int, ...], ...] = ()  # where each piece begins in the whole


def moved(tensor: TensorInfo, prefix: str, first: int) -> TensorInfo:
    """The tensor in a larger checkpoint: under a longer name, its storages behind others."""
    new = replace(tensor, name=prefix + tensor.name, storage=tensor.storage + first)
    if isinstance(new, InPieces):
        return replace(new, pieces=tuple(moved(piece, prefix, first) for piece in new.pieces))
    return new
