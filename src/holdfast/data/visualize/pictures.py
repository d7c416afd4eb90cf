"""What a tile shows of a sample, as the page draws it: pictures with shapes over them, plots, values on a scale, text.

Image files are turned or not, without holes, and 16 bits are stretched to what a screen shows.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.listing import read_bytes
from holdfast.data.pixels import exif_orientation, opened

if TYPE_CHECKING:
    from PIL import Image


Size = tuple[int, int]
Colour = tuple[int, int, int]
ROOM: Size = (320, 250)  # pixels of a picture on the page, at most
_LARGEST_FILE = 1 << 28
_CHECKS = ((255, 255, 255), (214, 219, 226))
_SQUARE = 8
_SMALL = 128  # pixels of a side, up to which a picture is kept without loss
_MANY: tuple[Colour, ...] = (  # can be told apart on dark and on bright pictures
    (0, 158, 255), (255, 140, 0), (46, 204, 64), (240, 60, 200), (255, 214, 10), (0, 200, 180),
    (170, 110, 255), (255, 110, 110), (140, 200, 40), (110, 150, 200), (200, 130, 80), (255, 160, 200),
)  # fmt: skip


class Shape(NamedTuple):
    """A box or polygon over a picture, in its pixels as they are shown. A bad one is red."""

    points: list[tuple[float, float]]
    name: str
    colour: str
    bad: bool
    ring: tuple[float, float] | None  # the middle of one that could be overlooked


class Picture(NamedTuple):
    """An image that the page holds, as large as it is shown; a word above it where there are several."""

    source: str
    size: Size
    word: str = ""
    shapes: tuple[Shape, ...] = ()


class Plot(NamedTuple):
    """Values of an array: its name, its range in words, and SVG paths with their colours."""

    name: str
    caption: str
    paths: list[tuple[str, str]]
    wide: float  # pixels of a line
    bad: bool


class Value(NamedTuple):
    """A single value; of a number also where it lies on the usual range of its column, from 0 to 1."""

    name: str
    text: str
    share: float | None
    bad: bool


@dataclass(slots=True, kw_only=True)
class Tile:
    """All that is seen of a sample. `words` say why there is nothing else; `more` columns are not shown."""

    words: tuple[str, str] = ("", "")
    pictures: list[Picture] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    more: int = 0


def words_instead(title: str, message: str) -> Tile:
    """A tile for what cannot be drawn, which says why."""
    return Tile(words=(title, message[:500]))


def colour_of(number: int) -> Colour:
    """The colour of the n-th class or object."""
    return _MANY[number % len(_MANY)]


def hexed(colour: Colour) -> str:
    """As a page takes it."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


class Stored(NamedTuple):
    """The pixels as they are stored, in RGB, and as EXIF wants them shown, with how it turns them."""

    pixels: Image.Image
    shown: Image.Image
    orientation: int


def read_picture(path: Path) -> Stored:
    """Decode an image; whatever its decoder raises where it is damaged."""
    from PIL import ImageOps

    image = opened(read_bytes(path, limit=_LARGEST_FILE))
    image.load()
    exif = image.info.get("exif")
    orientation = exif_orientation(exif.removeprefix(b"Exif\0\0")) if isinstance(exif, bytes) else 1
    pixels = _as_colours(image)
    return Stored(pixels, pixels if orientation == 1 else _as_colours(ImageOps.exif_transpose(image)), orientation)


def _as_colours(image: Image.Image) -> Image.Image:
    """RGB of any mode. What is transparent shows a chequerboard, but only where that hides something."""
    from PIL import Image

    if image.mode.startswith(("I", "F")):
        return stretched(np.asarray(image))
    if image.mode in ("RGBA", "LA", "PA") or (image.mode == "P" and "transparency" in image.info):
        image = image.convert("RGBA")
        alpha = image.getchannel("A")
        if alpha.getextrema() == (255, 255):
            return image.convert("RGB")
        down, across = np.indices((image.height, image.width)) // _SQUARE
        under = Image.fromarray(np.array(_CHECKS, np.uint8)[(down + across) % 2])
        under.paste(image, mask=alpha)
        return under
    return image.convert("RGB")


def stretched(values: Any) -> Image.Image:
    """Numbers of any range as grey: from the 0.5th to the 99.5th percentile."""
    array = np.asarray(values, dtype=np.float64)
    some = array[np.isfinite(array)]
    low, high = np.quantile(some, (0.005, 0.995)) if some.size else (0.0, 1.0)
    if high <= low and some.size:
        low, high = some.min(), some.max()
    return painted(np.stack([array] * 3, axis=-1), float(low), float(high))


def painted(values: npt.NDArray[np.float64], low: float, high: float) -> Image.Image:
    """Numbers of three channels as colours, from this lowest to this highest one. What is no number is magenta."""
    from PIL import Image

    finite, span = np.isfinite(values), high - low if high > low else 1.0
    pixels = (np.clip((np.where(finite, values, low) - low) / span, 0, 1) * 255).astype(np.uint8)
    pixels[~finite.all(axis=-1)] = (255, 0, 255)
    return Image.fromarray(pixels)


def shown_size(size: Size) -> Size:
    """The size at which a picture fills its place on the page."""
    scale = min(ROOM[0] / max(size[0], 1), ROOM[1] / max(size[1], 1))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def shrunk(image: Image.Image) -> Image.Image:
    """No larger than it is shown; a small one is enlarged by the page."""
    from PIL import Image

    size = shown_size(image.size)
    return image if size[0] >= image.width else image.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0)


def picture_of(image: Image.Image, word: str = "", shapes: tuple[Shape, ...] = ()) -> Picture:
    """An image for the page."""
    kind, buffer = "png" if max(image.size) <= _SMALL else "jpeg", io.BytesIO()
    shrunk(image).save(buffer, kind, **({"quality": 85} if kind == "jpeg" else {}))
    source = f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return Picture(source, shown_size(image.size), word, shapes)
