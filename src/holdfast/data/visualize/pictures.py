"""Image files as pictures that can be looked at: turned or not, without holes, 16 bits stretched to what a screen shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from holdfast.data.image_header import exif_orientation, read_header
from holdfast.data.listing import read_bytes
from holdfast.data.pixels import opened
from holdfast.data.visualize.colours import BAD, CARD, INK, LINE, SOFT
from holdfast.data.visualize.letters import folded, put
from holdfast.data.visualize.sample import Size

if TYPE_CHECKING:
    from PIL import Image

_LARGEST_FILE = 1 << 28
_CHECKS = ((255, 255, 255), (214, 219, 226))
_SQUARE = 8


class Picture(NamedTuple):
    """The pixels as they are stored, in RGB; how EXIF wants them turned; and what kind they were."""

    pixels: Image.Image
    orientation: int
    mode: str


def read_picture(path: Path) -> Picture:
    """Decode an image; whatever its decoder raises where it is damaged."""
    content = read_bytes(path, limit=_LARGEST_FILE)
    image = opened(content)
    mode = image.mode
    orientation = read_header(content).orientation if image.format in ("JPEG", "PNG", "MPO") else _orientation(image)
    image.load()
    return Picture(_as_colours(image), orientation, mode)


def _orientation(image: Image.Image) -> int:
    found = image.info.get("exif")
    return exif_orientation(found.removeprefix(b"Exif\0\0")) if isinstance(found, bytes) else 1


def _as_colours(image: Image.Image) -> Image.Image:
    """RGB of any mode. What is transparent shows a chequerboard, but only where that hides something."""
    if image.mode.startswith(("I", "F")):
        return stretched(np.asarray(image))
    if image.mode in ("RGBA", "LA", "PA") or (image.mode == "P" and "transparency" in image.info):
        image = image.convert("RGBA")
        alpha = image.getchannel("A")
        if alpha.getextrema() == (255, 255):
            return image.convert("RGB")
        under = _chequered(image.size)
        under.paste(image, mask=alpha)
        return under
    return image.convert("RGB")


def _chequered(size: Size) -> Image.Image:
    from PIL import Image

    down, across = np.indices((size[1], size[0])) // _SQUARE
    return Image.fromarray(np.array(_CHECKS, np.uint8)[(down + across) % 2])


def stretched(values: Any) -> Image.Image:
    """Numbers of any range as grey: from the 0.5th to the 99.5th percentile. What is no number is magenta."""
    from PIL import Image

    numbers = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(numbers)
    some = numbers[finite]
    low, high = np.quantile(some, (0.005, 0.995)) if some.size else (0.0, 1.0)
    if high <= low:
        low, high = (float(some.min()), float(some.max())) if some.size else (0.0, 1.0)
    span = high - low if high > low else 1.0
    grey = (np.clip((np.where(finite, numbers, low) - low) / span, 0, 1) * 255).astype(np.uint8)
    pixels = np.stack([grey] * 3, axis=-1)
    pixels[~finite] = (255, 0, 255)
    return Image.fromarray(pixels)


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """The picture as EXIF wants it shown."""
    from PIL import Image

    how = Image.Transpose
    steps = {2: how.FLIP_LEFT_RIGHT, 3: how.ROTATE_180, 4: how.FLIP_TOP_BOTTOM, 5: how.TRANSPOSE, 6: how.ROTATE_270,
             7: how.TRANSVERSE, 8: how.ROTATE_90}  # fmt: skip
    return image.transpose(steps[orientation]) if orientation in steps else image


def fitting(size: Size, room: Size) -> Size:
    """The size at which a picture fills the room."""
    scale = min(room[0] / max(size[0], 1), room[1] / max(size[1], 1))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def scaled(image: Image.Image, size: Size) -> Image.Image:
    """Made larger or smaller; single pixels stay sharp where they are made much larger."""
    from PIL import Image

    if image.size == size:
        return image
    much = size[0] >= 3 * image.width
    return image.resize(size, Image.Resampling.NEAREST if much else Image.Resampling.BILINEAR, reducing_gap=None if much else 2.0)


def words_instead(title: str, words: str, room: Size) -> Image.Image:
    """A tile for what cannot be drawn, which says why."""
    from PIL import Image, ImageDraw

    made = Image.new("RGB", room, CARD)
    draw = ImageDraw.Draw(made)
    draw.rectangle((0, 0, room[0] - 1, room[1] - 1), outline=LINE)
    middle = room[1] // 2 - 44
    draw.ellipse((room[0] // 2 - 13, middle - 13, room[0] // 2 + 13, middle + 13), outline=BAD, width=3)
    draw.line((room[0] // 2 - 9, middle - 9, room[0] // 2 + 9, middle + 9), fill=BAD, width=3)
    put(draw, (room[0] // 2, middle + 24), title, 15, INK, anchor="ma")
    for number, line in enumerate(folded(words, 12, room[0] - 32, 4)):
        put(draw, (room[0] // 2, middle + 48 + 16 * number), line, 12, SOFT, anchor="ma")
    return made


def side_by_side(parts: list[tuple[str, Image.Image]], room: Size) -> Image.Image:
    """Pictures in one tile, each with a word above it."""
    from PIL import Image, ImageDraw

    made = Image.new("RGB", room, CARD)
    draw = ImageDraw.Draw(made)
    share = room[0] // len(parts)
    for number, (word, part) in enumerate(parts):
        put(draw, (share * number + share // 2, 2), word, 12, SOFT, anchor="ma")
        made.paste(part, (share * number + (share - part.width) // 2, 18 + (room[1] - 18 - part.height) // 2))
    return made
