"""One image with its boxes, polygons or masks drawn on it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from holdfast.data.checks.boxes import KINDS as OF_BOXES
from holdfast.data.checks.images import way_of
from holdfast.data.formats.masks import folder_of_masks
from holdfast.data.pixels import read_mask
from holdfast.data.problem import Fault
from holdfast.data.samples import ClassKey, Entry, ImageSet, Label, Thing, in_pixels
from holdfast.data.visualize.pictures import (
    Colour,
    Picture,
    Shape,
    Size,
    Stored,
    Tile,
    colour_of,
    hexed,
    picture_of,
    read_picture,
    shown_size,
    shrunk,
    words_instead,
)

if TYPE_CHECKING:
    from PIL import Image


_TINY = 14  # pixels
_FAR = 1e5  # a coordinate beyond this many pixels is drawn there


def shapes_of(
    things: list[Thing],
    size: Size,
    *,
    colour: Callable[[ClassKey], Colour],
    name: Callable[[ClassKey], str],
    bad_lines: Collection[int],
) -> tuple[Shape, ...]:
    """The objects of an image of this size, where they are once it fills its place; the bad ones last, over the others."""
    shown = shown_size(size)
    across, down = shown[0] / max(size[0], 1), shown[1] / max(size[1], 1)
    shapes = []
    for kind, (left, top, right, bottom), polygon, line in things:
        corners = polygon or (left, top, right, top, right, bottom, left, bottom)
        points = [(_near(x * across), _near(y * down)) for x, y in zip(corners[0::2], corners[1::2], strict=True)]
        bad, tiny = line in bad_lines, min((right - left) * across, (bottom - top) * down) < _TINY
        middle = _near((left + right) / 2 * across), _near((top + bottom) / 2 * down)
        shapes.append(Shape(points, name(kind), hexed(colour(kind)), bad, middle if bad and tiny else None))
    return tuple(sorted(shapes, key=lambda shape: shape.bad))


def _near(value: float) -> float:
    return round(min(max(value, -_FAR), _FAR), 1)


# Masks over a picture: a translucent colour for each class or object, and its edge.

Numbers = npt.NDArray[np.int64]
_COVER = 0.4  # of a pixel's colour that is the mask's
_IGNORED, _GREY = 255, (128, 128, 128)


def read_masks(root: Path, files: Sequence[str]) -> tuple[Numbers | None, str]:
    """The numbers of that folder of masks which tells most objects apart, and its name. What cannot be read is left out."""
    folders: dict[str, list[str]] = {}
    for file in files:
        folders.setdefault(folder_of_masks(file), []).append(file)
    maps = {folder: made for folder, some in folders.items() if (made := _one_folder(root, some)) is not None}
    best = max(maps, key=lambda folder: len(np.unique(maps[folder])), default="")
    return maps.get(best), best


def _one_folder(root: Path, files: Sequence[str]) -> Numbers | None:
    """One file: its own numbers. Several: each is an object, the later over the earlier."""
    made: Numbers | None = None
    for place, file in enumerate(files, 1):
        with contextlib.suppress(Exception):  # decoders raise anything on damaged files
            values = _flat(read_mask(root / file))
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


def draw_masks(picture: Image.Image, mask: Numbers, *, classes: Mapping[int, int] | None) -> Image.Image:
    """Lay a mask over a picture. `classes`: the place of each class in the list of colours; without, each number has its own."""
    from PIL import Image

    nearest = Image.fromarray(mask.astype(np.int32)).resize(picture.size, Image.Resampling.NEAREST)
    scaled: Numbers = np.asarray(nearest).astype(np.int64)
    values = np.unique(scaled)
    colours = np.array(
        [
            colour_of(place - 1) if classes is None
            else _GREY if value == _IGNORED and value not in classes
            else colour_of(classes.get(value, value))
            for place, value in enumerate(values.tolist())
        ], np.float64,
    )  # fmt: skip
    over = colours[np.searchsorted(values, scaled)]
    pixels = np.asarray(picture.convert("RGB")).astype(np.float64)
    inside = scaled != 0
    pixels[inside] = (1 - _COVER) * pixels[inside] + _COVER * over[inside]
    edges = _edges(scaled)
    pixels[edges] = over[edges]
    return Image.fromarray(pixels.astype(np.uint8))


def _edges(mask: Numbers) -> npt.NDArray[np.bool_]:
    """The pixels of objects beside which something else begins."""
    edges: npt.NDArray[np.bool_] = np.zeros(mask.shape, bool)
    for here, there in ((np.s_[:, 1:], np.s_[:, :-1]), (np.s_[1:], np.s_[:-1])):
        differ = mask[here] != mask[there]
        edges[here] |= differ
        edges[there] |= differ
    edges &= mask != 0
    return edges


_OF_BOXES = frozenset(OF_BOXES)
_NOT_OPENED = frozenset({"image-unreadable", "image-empty"})


class ImageDrawing:
    """Draws the samples of one set; a class has the same colour in all of them."""

    def __init__(self, data: ImageSet, places: Mapping[ClassKey, int], kinds: Mapping[str, str]) -> None:
        self._data, self._places, self._kinds = data, places, kinds

    def tile(self, entry: Entry, faults: tuple[Fault, ...]) -> Tile:
        """The tile of a sample. What a scan could not decode is not tried again: a decoder may crash or hang on it."""
        broken = next((fault for fault in faults if fault.code in _NOT_OPENED and fault.file == entry.image), None)
        if broken is not None:
            return words_instead("cannot be decoded", broken.detail or broken.code)
        try:
            picture = read_picture(self._data.root / entry.image)
        except Exception as error:  # noqa: BLE001 - decoders raise anything on damaged files
            return words_instead("cannot be decoded", str(error) or type(error).__name__)
        label = self._data.label_of(entry)
        mask, folder = read_masks(self._data.root, entry.masks)
        bad = {fault.line for fault in faults if fault.code in _OF_BOXES}
        ways = _ways(picture, label, mask)
        return Tile(pictures=[self._marked(word, image, label, mask, folder, bad) for word, image in ways])

    def _marked(self, word: str, image: Image.Image, label: Label, mask: Numbers | None, folder: str, bad: set[int]) -> Picture:
        shapes = shapes_of(
            in_pixels(label, image.size), image.size, name=self._data.class_name, bad_lines=bad,
            colour=lambda key: colour_of(self._places.get(key, 0)),
        )  # fmt: skip
        if mask is not None and mask.size:
            of_classes = self._kinds.get(folder) == "classes"
            places = {key: place for key, place in self._places.items() if isinstance(key, int)}
            image = draw_masks(shrunk(image), mask, classes=places if of_classes else None)
        return picture_of(image, word, shapes)


def _ways(picture: Stored, label: Label, mask: Numbers | None) -> list[tuple[str, Image.Image]]:
    """The picture the way its labels mean it: as stored, or as EXIF turns it. Both where that cannot be told."""
    width, height = picture.pixels.size
    if picture.orientation == 1 or (mask is None and not label.things):
        return [("", picture.shown)]
    way = way_of(label, picture.orientation, width, height) if label.things else ""
    if mask is not None and picture.shown.size != picture.pixels.size:
        way = {(height, width): "stored", (width, height): "shown"}.get(mask.shape, way)
    if way:
        return [("", picture.shown if way == "shown" else picture.pixels)]
    return [("as stored", picture.pixels), ("as EXIF turns it", picture.shown)]
