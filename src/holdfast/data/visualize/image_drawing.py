"""One image with its boxes, polygons or masks drawn on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.data.checks.boxes import KINDS as OF_BOXES
from holdfast.data.checks.image_whole import EMPTY, UNREADABLE
from holdfast.data.checks.rotation import way_of
from holdfast.data.problem import Fault
from holdfast.data.samples import ClassKey, Entry, ImageSet, Label, in_pixels
from holdfast.data.visualize.boxes import draw_things
from holdfast.data.visualize.colours import Colour, colour_of
from holdfast.data.visualize.masks import Numbers, draw_masks, read_masks
from holdfast.data.visualize.pictures import Picture, fitting, read_picture, scaled, side_by_side, turned, words_instead
from holdfast.data.visualize.sample import Size

if TYPE_CHECKING:
    from PIL import Image

_OF_BOXES = frozenset(kind.code for kind in OF_BOXES)
_NOT_OPENED = frozenset({UNREADABLE.code, EMPTY.code})
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
        numbers, folder, _ = read_masks(self._data.root, entry.masks) if entry.masks else (None, "", [])
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
        return draw_things(made, things, pixels.size, colour=self._colour, name=self._name, bad_lines=bad)

    def _colour(self, key: ClassKey) -> Colour:
        return colour_of(self._places.get(key, 0))

    def _name(self, key: ClassKey) -> str:
        return str(self._data.classes.get(key, key))


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
