"""What is in a mask: its size, its values, and whether different ones touch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from holdfast.data.facts import MaskFacts
from holdfast.data.pixels import opened

_MOST = 300


def read_mask(path: Path) -> npt.NDArray[np.integer]:
    """The numbers of a mask; those of the palette where it has one. A mask in colours is given with its channels."""
    image = opened(path.read_bytes())
    pixels = np.asarray(image)
    return pixels.astype(np.uint8) if pixels.dtype == np.bool_ else pixels


def mask_facts(root: Path, file: str) -> MaskFacts:
    """Look at one mask; OSError or ValueError where it cannot be read."""
    image = opened((root / file).read_bytes())
    pixels = np.asarray(image)
    if pixels.ndim != 2 or pixels.dtype.kind not in "bui":
        return MaskFacts(file, image.width, image.height, image.mode, ())
    if pixels.dtype.itemsize <= 2 and pixels.dtype.kind != "i":
        values = np.flatnonzero(np.bincount(pixels.ravel()))
    else:
        values = np.unique(pixels)
    touching = len(values) > 2 and (_touch(pixels[:, 1:], pixels[:, :-1]) or _touch(pixels[1:], pixels[:-1]))
    return MaskFacts(file, image.width, image.height, image.mode, tuple(map(int, values[:_MOST])), touching)


def _touch(one: npt.NDArray[np.integer], other: npt.NDArray[np.integer]) -> bool:
    return bool(((one != other) & (one > 0) & (other > 0)).any())


def overlapping_pixels(root: Path, files: Sequence[str]) -> int:
    """Pixels that more than one of the masks of a sample claims, where each object has a mask of its own."""
    covered: npt.NDArray[np.uint16] | None = None
    for file in files:
        inside = (read_mask(root / file) > 0).astype(np.uint16)
        inside = inside if inside.ndim == 2 else inside.max(axis=2)
        if covered is None:
            covered = inside
        elif covered.shape == inside.shape:
            covered += inside
    return 0 if covered is None else int((covered > 1).sum())
