"""Boxes and polygons on a picture, each with its class; those with a fault in red, with a ring around them if they are tiny."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from holdfast.data.samples import ClassKey, Thing
from holdfast.data.visualize.colours import BAD, Colour, hexed, ink_on
from holdfast.data.visualize.letters import fitted, put, width_of
from holdfast.data.visualize.sample import Size

if TYPE_CHECKING:
    from PIL import Image

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
    for place in sorted(places, key=lambda one: one.bad):
        place.outline(draw)
    for place in sorted(places, key=lambda one: one.bad):
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

    def outline(self, draw: object) -> None:
        """The object's edge."""
        from PIL import ImageDraw

        assert isinstance(draw, ImageDraw.ImageDraw)
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

    def label(self, draw: object, words: str, size: Size) -> None:
        """The class, at the upper left corner, inside the picture."""
        from PIL import ImageDraw

        assert isinstance(draw, ImageDraw.ImageDraw)
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
