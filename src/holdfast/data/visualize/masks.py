"""Masks over a picture: a translucent colour for each class or object, and its edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from holdfast.data.formats.masks import folder_of_masks
from holdfast.data.mask_values import read_mask
from holdfast.data.visualize.colours import colour_of
from holdfast.data.visualize.sample import Size

if TYPE_CHECKING:
    from PIL import Image

Numbers = npt.NDArray[np.int64]
_COVER = 0.4  # of a pixel's colour that is the mask's
_IGNORED, _GREY = 255, (128, 128, 128)


def read_masks(root: Path, files: Sequence[str]) -> tuple[Numbers | None, str, list[str]]:
    """The numbers of that folder of masks which tells most objects apart, its name, and what could not be read."""
    folders: dict[str, list[str]] = {}
    for file in files:
        folders.setdefault(folder_of_masks(file), []).append(file)
    wrong: list[str] = []
    maps = {folder: made for folder, some in folders.items() if (made := _one_folder(root, some, wrong)) is not None}
    if not maps:
        return None, "", wrong
    best = max(maps, key=lambda folder: len(np.unique(maps[folder])))
    return maps[best], best, wrong


def _one_folder(root: Path, files: Sequence[str], wrong: list[str]) -> Numbers | None:
    """One file: its own numbers. Several: each is an object, the later over the earlier."""
    made: Numbers | None = None
    for place, file in enumerate(files, 1):
        try:
            values = _flat(read_mask(root / file))
        except Exception as error:  # noqa: BLE001 - decoders raise anything on damaged files
            wrong.append(f"{file}: {error}"[:200])
            continue
        if len(files) == 1:
            return values
        made = np.zeros_like(values) if made is None else made
        if made.shape == values.shape:
            made[values > 0] = place
    return made


def _flat(values: npt.NDArray[Any]) -> Numbers:
    """One number a pixel; colours become numbers of their own, without what alpha says."""
    if values.ndim == 2:
        return values.astype(np.int64)
    bands = values[..., :3].astype(np.int64)
    packed: Numbers = sum(
        (bands[..., band] << (8 * band) for band in range(bands.shape[-1])), np.zeros(values.shape[:2], np.int64)
    )
    return packed


def draw_masks(picture: Image.Image, numbers: Numbers, *, classes: Mapping[int, int] | None) -> Image.Image:
    """Lay a mask over a picture. `classes`: the place of each class in the list of colours; without, each number has its own."""
    from PIL import Image

    scaled = _scaled(numbers, picture.size)
    values = np.unique(scaled)
    colours = np.array([_colour(int(value), place, classes) for place, value in enumerate(values)], np.float64)
    over = colours[np.searchsorted(values, scaled)]
    pixels = np.asarray(picture.convert("RGB")).astype(np.float64)
    inside = scaled != 0
    pixels[inside] = (1 - _COVER) * pixels[inside] + _COVER * over[inside]
    edges = _edges(scaled)
    pixels[edges] = over[edges]
    return Image.fromarray(pixels.astype(np.uint8))


def _colour(value: int, place: int, classes: Mapping[int, int] | None) -> tuple[int, int, int]:
    if classes is None:
        return colour_of(place - 1)
    if value == _IGNORED and value not in classes:
        return _GREY
    return colour_of(classes.get(value, value))


def _scaled(numbers: Numbers, size: Size) -> Numbers:
    """The nearest pixel's number; none is invented between two."""
    down = np.minimum((np.arange(size[1]) + 0.5) * numbers.shape[0] / size[1], numbers.shape[0] - 1).astype(int)
    across = np.minimum((np.arange(size[0]) + 0.5) * numbers.shape[1] / size[0], numbers.shape[1] - 1).astype(int)
    scaled: Numbers = numbers[down][:, across]
    return scaled


def _edges(numbers: Numbers) -> npt.NDArray[np.bool_]:
    """The pixels of objects beside which something else begins."""
    edges: npt.NDArray[np.bool_] = np.zeros(numbers.shape, bool)
    for here, there in ((np.s_[:, 1:], np.s_[:, :-1]), (np.s_[1:], np.s_[:-1])):
        differ = numbers[here] != numbers[there]
        edges[here] |= differ
        edges[there] |= differ
    edges &= numbers != 0
    return edges
