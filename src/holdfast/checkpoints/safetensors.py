"""Write tensors as a safetensors file, and read one back, with no other package: it may not be there in a training.

Bytes are checksummed, looked at and written in one pass, a piece at a time. All three let other threads run.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from holdfast.checkpoints import numbers
from holdfast.checkpoints.formats.safetensors_file import DTYPES, open_safetensors
from holdfast.errors import StorageError

PIECE = 4 << 20  # bytes that are done at a time
_NAMES = {getattr(torch, torch_name): name for name, torch_name in DTYPES.items() if hasattr(torch, torch_name)}
_NAMES.pop(torch.complex128, None)  # not every release of the safetensors package reads these
_NAMES.pop(getattr(torch, "float8_e8m0fnu", None), None)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Tensors:
    """The content of one safetensors file; `tied` names that stand for a tensor of another name, written once."""

    tensors: Mapping[str, torch.Tensor]
    tied: Mapping[str, str] = field(default_factory=dict)


def can_hold(dtype: torch.dtype) -> bool:
    """Whether a safetensors file holds numbers of this kind."""
    return dtype in _NAMES


def write_safetensors(write: Callable[[memoryview], Any], content: Tensors) -> dict[str, Any]:
    """Write a file, piece by piece, and say what the manifest says of it: checksums, and numbers that are not finite.

    `write` must take all that it is given, as that of a buffered file does.
    """
    order = sorted(content.tensors, key=lambda name: (-content.tensors[name].dtype.itemsize, name))  # keeps values aligned
    header = _header(content, order)
    write(memoryview(header))
    facts = {}
    for name in order:
        crc, bad = 0, 0
        for piece in pieces(content.tensors[name]):
            memory = piece.data
            crc = zlib.crc32(memory, crc)
            bad += _count(piece, content.tensors[name].dtype)
            write(memory)
        facts[name] = {"crc32": f"{crc:08x}", "non_finite": bad}
    return {"crc32": f"{zlib.crc32(header):08x}", "tensors": facts}


def read_safetensors(path: Path) -> Tensors:
    """The tensors of a file, mapped from it: they take memory only as they are used. Raises StorageError if it is damaged."""
    contents = open_safetensors(path)
    if contents.troubles:
        trouble = contents.troubles[0]
        raise StorageError(f"{path} cannot be read: {trouble.text}", fix=trouble.fix)
    tensors = {}
    mapped = torch.from_numpy(np.memmap(path, np.uint8, mode="c")) if contents.size else torch.empty(0, dtype=torch.uint8)
    for info in contents.tensors:
        dtype, storage = getattr(torch, info.dtype), contents.storages[info.storage]
        flat = mapped[storage.offset : storage.offset + storage.size]
        aligned = flat if storage.offset % max(dtype.itemsize, 1) == 0 else flat.clone()  # as other writers may leave it
        tensors[info.name] = aligned.view(dtype).view(info.shape) if storage.size else torch.empty(info.shape, dtype=dtype)
    notes = contents.tree.get("__metadata__", {})
    return Tensors(tensors, {name: kept for name, kept in notes.items() if kept in tensors and name not in tensors})


def count(tensor: torch.Tensor) -> int:
    """How many of its numbers are not finite."""
    return sum(_count(piece, tensor.dtype) for piece in pieces(tensor))


def _count(piece: numbers.Bytes, dtype: torch.dtype) -> int:
    layout = numbers.LAYOUTS.get(str(dtype).removeprefix("torch."))  # whole numbers have none
    return 0 if layout is None or numbers.is_finite(piece, layout) else numbers.count(piece, layout).all


def pieces(tensor: torch.Tensor) -> Iterator[npt.NDArray[np.uint8]]:
    """The tensor's bytes in the order in which a file holds them, a few megabytes at a time."""
    if tensor.numel() == 0:
        return
    bits = _bits(tensor)
    if bits.is_contiguous():
        flat = bits.reshape(-1).view(torch.uint8).numpy()
        for at in range(0, flat.size, PIECE):
            yield flat[at : at + PIECE]
        return
    array = bits.numpy()
    rows = max(1, PIECE // max(1, array[:1].nbytes))
    for row in range(0, len(array), rows):
        flat = np.ascontiguousarray(array[row : row + rows]).reshape(-1).view(np.uint8)
        for at in range(0, flat.size, PIECE):
            yield flat[at : at + PIECE]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as whole numbers, which numpy knows in every size."""
    tensor = tensor.detach()
    tensor = tensor.resolve_conj().resolve_neg()
    return tensor.view(_BITS[tensor.dtype.itemsize]) if tensor.dtype.itemsize in _BITS else torch.view_as_real(tensor)


def _header(content: Tensors, order: list[str]) -> bytes:
    """The length and the header, filled with spaces to where numbers may begin."""
    entries: dict[str, object] = {"__metadata__": {**content.tied, "format": "pt"}}
    at = 0
    for name in order:
        tensor = content.tensors[name]
        size = math.prod(tensor.shape) * tensor.dtype.itemsize
        entries[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return struct.pack("<Q", len(text)) + text
