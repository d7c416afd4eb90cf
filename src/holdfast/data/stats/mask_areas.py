"""What the masks of one sample cover: pixels of each value, and where in the image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.checks.masks import UNREADABLE
from holdfast.data.formats.masks import folder_of_masks
from holdfast.data.listing import read_bytes
from holdfast.data.pixels import opened
from holdfast.data.problem import Fault

SIDE = 16  # of the map of what is covered
_MOST = 300  # values of one mask
_LARGEST = 1 << 30


class MaskSeen(NamedTuple):
    """One mask. `values` and `pixels` belong together; `cover` is how much of 16 × 16 fields is not 0, in hexadecimal bytes."""

    folder: str
    mode: str
    width: int
    height: int
    values: tuple[int, ...]
    pixels: tuple[int, ...]
    cover: str


def masks_seen(root: Path, files: Sequence[str], faults: list[Fault]) -> Iterator[MaskSeen]:
    """Look at all masks of a sample; one that cannot be decoded is a fault."""
    for file in files:
        try:
            yield _seen(root / file, folder_of_masks(file))
        except Exception as error:  # noqa: BLE001 - decoders raise anything on damaged files
            faults.append(Fault(UNREADABLE.code, file, 0, str(error)[:200] or type(error).__name__))


def _seen(path: Path, folder: str) -> MaskSeen:
    image = opened(read_bytes(path, limit=_LARGEST))
    pixels = np.asarray(image)
    if pixels.ndim != 2 or pixels.dtype.kind not in "bui":
        inside = pixels.reshape(*pixels.shape[:2], -1).max(axis=2) > 0
        return MaskSeen(folder, image.mode, *image.size, (), (), _cover(inside))
    values, counts = _counted(pixels)
    return MaskSeen(folder, image.mode, *image.size, values, counts, _cover(pixels > 0))


def _counted(pixels: npt.NDArray[np.integer]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if pixels.dtype.itemsize <= 2 and pixels.dtype.kind != "i":
        counts = np.bincount(pixels.ravel())
        values = np.flatnonzero(counts)
        counts = counts[values]
    else:
        values, counts = np.unique(pixels, return_counts=True)
    return tuple(values[:_MOST].tolist()), tuple(counts[:_MOST].tolist())


def _cover(inside: npt.NDArray[np.bool_]) -> str:
    from PIL import Image

    small = Image.fromarray(inside.astype(np.uint8) * 255).resize((SIDE, SIDE), Image.Resampling.BOX)
    return small.tobytes().hex()


def cover_of(seen: MaskSeen) -> npt.NDArray[np.float64]:
    """The map as shares."""
    return np.frombuffer(bytes.fromhex(seen.cover), dtype=np.uint8).reshape(SIDE, SIDE) / 255.0
