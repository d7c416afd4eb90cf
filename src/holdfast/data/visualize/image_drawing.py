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
    BAD,
    Colour,
    Picture,
    colour_of,
    fitted,
    fitting,
    hexed,
    ink_on,
    put,
    read_picture,
    scaled,
    side_by_side,
    turned,
    width_of,
    words_instead,
)
from holdfast.data.visualize.sample import Size

if TYPE_CHECKING:
    from PIL import Image, ImageDraw


# Boxes and polygons on a picture, each with its class; those with a fault in red, with a ring around them if they are tiny.

_TINY = 14  # pixels
_RING = 11
_MOST_NAMES = 24  # objects, above which their names would cover the picture
_LETTERS = 11
_FAR = 1e5  # a coordinate beyond this many pixels is drawn there: Pillow overflows on larger ones


def draw_things(
    picture: Image.Image,
    things: list[Thing],
    size: Size,
    *,
    colour: Callable[[ClassKey], Colour],
    name: Callable[[ClassKey], str],
    bad_lines: Collection[int],
) -> Image.Image:
    """Draw all objects of an image that had this size before it was scaled to what is given."""
    from PIL import Image, ImageDraw

    across, down = picture.width / max(size[0], 1), picture.height / max(size[1], 1)
    places = [_Place(thing, across, down, thing.line in bad_lines, colour(thing.class_id)) for thing in things]
    if any(place.polygon for place in places):
        filled = Image.new("RGBA", picture.size)
        over = ImageDraw.Draw(filled)
        for place in places:
            if place.polygon:
                over.polygon(place.polygon, fill=(*place.colour, 70))
        picture = Image.alpha_composite(picture.convert("RGBA"), filled).convert("RGB")
    draw = ImageDraw.Draw(picture)
    places.sort(key=lambda one: one.bad)
    for place in places:
        place.outline(draw)
    for place in places:
        if len(places) <= _MOST_NAMES or place.bad:
            place.label(draw, name(place.class_id), picture.size)
    return picture


class _Place:
    """Where an object is in the scaled picture."""

    def __init__(self, thing: Thing, across: float, down: float, bad: bool, colour: Colour) -> None:
        left, top, right, bottom = thing.box
        self.class_id = thing.class_id
        self.corners = tuple(_near(value) for value in (left * across, top * down, right * across, bottom * down))
        points = thing.polygon or ()
        self.polygon = [(_near(x * across), _near(y * down)) for x, y in zip(points[0::2], points[1::2], strict=True)]
        self.bad = bad
        self.colour = colour

    def outline(self, draw: ImageDraw.ImageDraw) -> None:
        """The object's edge."""
        left, top, right, bottom = self.corners
        ink = BAD if self.bad else hexed(self.colour)
        if self.polygon:
            draw.line([*self.polygon, self.polygon[0]], fill=ink, width=3 if self.bad else 2, joint="curve")
        else:
            corners = (min(left, right), min(top, bottom), max(left, right), max(top, bottom))
            draw.rectangle(corners, outline=ink, width=3 if self.bad else 2)
        if self.bad and min(right - left, bottom - top) < _TINY:
            across, down = (left + right) / 2, (top + bottom) / 2
            draw.ellipse((across - _RING, down - _RING, across + _RING, down + _RING), outline=BAD, width=2)

    def label(self, draw: ImageDraw.ImageDraw, words: str, size: Size) -> None:
        """The class, at the upper left corner, inside the picture."""
        words = fitted(words, _LETTERS, 110)
        width, height = width_of(words, _LETTERS) + 6, _LETTERS + 3
        left = min(max(0.0, self.corners[0]), size[0] - width)
        top = self.corners[1] - height if self.corners[1] >= height else max(0.0, self.corners[1])
        top = min(top, size[1] - height)
        ink = (224, 36, 36) if self.bad else self.colour
        draw.rectangle((left, top, left + width, top + height), fill=hexed(ink))
        put(draw, (left + 3, top + height / 2), words, _LETTERS, ink_on(ink), anchor="lm")


def _near(value: float) -> float:
    return min(max(value, -_FAR), _FAR)


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


def draw_masks(picture: Image.Image, numbers: Numbers, *, classes: Mapping[int, int] | None) -> Image.Image:
    """Lay a mask over a picture. `classes`: the place of each class in the list of colours; without, each number has its own."""
    from PIL import Image

    nearest = Image.fromarray(numbers.astype(np.int32)).resize(picture.size, Image.Resampling.NEAREST)
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


def _edges(numbers: Numbers) -> npt.NDArray[np.bool_]:
    """The pixels of objects beside which something else begins."""
    edges: npt.NDArray[np.bool_] = np.zeros(numbers.shape, bool)
    for here, there in ((np.s_[:, 1:], np.s_[:, :-1]), (np.s_[1:], np.s_[:-1])):
        differ = numbers[here] != numbers[there]
        edges[here] |= differ
        edges[there] |= differ
    edges &= numbers != 0
    return edges


_OF_BOXES = frozenset(OF_BOXES)
_NOT_OPENED = frozenset({"image-unreadable", "image-empty"})
_CAPTION = 18  # pixels above each of two pictures in one tile


class ImageDrawing:
    """Draws the samples of one set; a class has the same colour in all of them."""

    def __init__(self, data: ImageSet, places: Mapping[ClassKey, int], kinds: Mapping[str, str]) -> None:
        self._data, self._places, self._kinds = data, places, kinds

    def draw(self, entry: Entry, faults: tuple[Fault, ...], room: Size) -> Image.Image:
        """The tile of a sample. What a scan could not decode is not tried again: a decoder may crash or hang on it."""
        broken = next((fault for fault in faults if fault.code in _NOT_OPENED and fault.file == entry.image), None)
        if broken is not None:
            return words_instead("cannot be decoded", broken.detail or broken.code, room)
        try:
            picture = read_picture(self._data.path_of(entry))
        except Exception as error:  # noqa: BLE001 - decoders raise anything on damaged files
            return words_instead("cannot be decoded", str(error) or type(error).__name__, room)
        label = self._data.label_of(entry)
        numbers, folder = read_masks(self._data.root, entry.masks)
        bad = {fault.line for fault in faults if fault.code in _OF_BOXES}
        ways = _ways(picture, label, numbers)
        if len(ways) == 1:
            return self._marked(ways[0][1], label, numbers, folder, bad, room)
        half = (room[0] // 2 - 4, room[1] - _CAPTION)
        return side_by_side([(word, self._marked(one, label, numbers, folder, bad, half)) for word, one in ways], room)

    def _marked(
        self, pixels: Image.Image, label: Label, numbers: Numbers | None, folder: str, bad: set[int], room: Size
    ) -> Image.Image:
        made = scaled(pixels, fitting(pixels.size, room))
        if numbers is not None and numbers.size:
            of_classes = self._kinds.get(folder) == "classes"
            places = {key: place for key, place in self._places.items() if isinstance(key, int)}
            made = draw_masks(made, numbers, classes=places if of_classes else None)
        things = in_pixels(label, pixels.size)
        if not things:
            return made
        return draw_things(
            made, things, pixels.size, name=self._data.class_name, bad_lines=bad,
            colour=lambda key: colour_of(self._places.get(key, 0)),
        )  # fmt: skip


def _ways(picture: Picture, label: Label, numbers: Numbers | None) -> list[tuple[str, Image.Image]]:
    """The picture the way its labels mean it: as stored, or as EXIF turns it. Both where that cannot be told."""
    if picture.orientation == 1:
        return [("", picture.pixels)]
    shown = turned(picture.pixels, picture.orientation)
    width, height = picture.pixels.size
    if numbers is None and not label.things:
        return [("", shown)]
    way = way_of(label, picture.orientation, width, height) if label.things else ""
    if numbers is not None and shown.size != picture.pixels.size:
        way = {(height, width): "stored", (width, height): "shown"}.get(numbers.shape, way)
    if way:
        return [("", shown if way == "shown" else picture.pixels)]
    return [("as stored", picture.pixels), ("as EXIF turns it", shown)]
