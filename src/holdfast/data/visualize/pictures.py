"""Image files as pictures that can be looked at: turned or not, without holes, 16 bits stretched to what a screen shows."""

from __future__ import annotations

import functools
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.listing import read_bytes
from holdfast.data.pixels import exif_orientation, opened
from holdfast.data.visualize.sample import Size

if TYPE_CHECKING:
    from PIL import Image, ImageDraw


# Colours of the sheets: those of classes and objects can be told apart on dark and on bright pictures.

Colour = tuple[int, int, int]

PAPER, CARD, INK, SOFT, LINE = "#eef1f5", "#ffffff", "#1a202c", "#5a6678", "#d5dbe4"
BAD = "#e02424"
SEVERITIES = {"critical": "#c53030", "warning": "#975a16", "info": "#2b6cb0"}
_MANY: tuple[Colour, ...] = (
    (0, 158, 255), (255, 140, 0), (46, 204, 64), (240, 60, 200), (255, 214, 10), (0, 200, 180),
    (170, 110, 255), (255, 110, 110), (140, 200, 40), (110, 150, 200), (200, 130, 80), (255, 160, 200),
)  # fmt: skip


def colour_of(number: int) -> Colour:
    """The colour of the n-th class or object."""
    return _MANY[number % len(_MANY)]


def hexed(colour: Colour) -> str:
    """As Pillow and a page take it."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def ink_on(colour: Colour) -> str:
    """Black or white, whichever can be read on it."""
    red, green, blue = colour
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"


# Words in pictures. The font comes with Pillow, so that a sheet is the same on every machine.
# It knows little more than ASCII; words with other letters are drawn with a usual font of the system, where there is one.

_INSTEAD = str.maketrans({"×": "x", "–": "-", "—": "-", "−": "-", "\t": " ", "\n": " ", "\r": " "})
_OTHERS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "Arial Unicode.ttf", "Arial.ttf", "arial.ttf")


@functools.cache
def font(size: int, *, wide: bool = False) -> Any:
    """The font of that size; `wide`: one that knows more letters, or the same where the system has none."""
    from PIL import ImageFont

    for name in _OTHERS if wide else ():
        try:
            return ImageFont.truetype(name, size, layout_engine=ImageFont.Layout.BASIC)
        except OSError:
            continue
    found = ImageFont.load_default(size)
    if isinstance(found, ImageFont.FreeTypeFont):
        return found.font_variant(layout_engine=ImageFont.Layout.BASIC)
    return found


@functools.lru_cache(maxsize=4096)
def _is_known(letter: str) -> bool:
    own = font(12)
    return bool(letter.isascii() or bytes(own.getmask(letter)) != bytes(own.getmask("\uffff")))


def written(text: str, size: int) -> tuple[str, Any]:
    """The text as it can be drawn, and the font for it. What cannot be printed becomes a `?`."""
    text = text.encode("utf-8", errors="replace").decode().translate(_INSTEAD)
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if all(map(_is_known, text)):
        return text, font(size)
    plain = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    if all(map(_is_known, plain)):
        return plain, font(size)
    return text, font(size, wide=True)


def width_of(text: str, size: int) -> float:
    """How many pixels the text takes."""
    shown, how = written(text, size)
    return float(how.getlength(shown))


def put(draw: ImageDraw.ImageDraw, place: tuple[float, float], text: str, size: int, colour: str, *, anchor: str = "la") -> None:
    """Write a text."""
    shown, how = written(text, size)
    draw.text(place, shown, fill=colour, font=how, anchor=anchor)


def fitted(text: str, size: int, width: float) -> str:
    """The text in so many pixels; what is left out is left out in the middle, since names differ at their ends."""
    if width_of(text, size) <= width:
        return text
    least, most = 0, len(text)
    while least < most:
        kept = (least + most + 1) // 2
        least, most = (kept, most) if width_of(_shorter(text, kept), size) <= width else (least, kept - 1)
    return _shorter(text, least)


def _shorter(text: str, kept: int) -> str:
    head = kept // 3
    return f"{text[:head]}…{text[len(text) - (kept - head) :]}"


def folded(text: str, size: int, width: float, lines: int) -> list[str]:
    """The text in at most so many lines of that width; a word that is too long is shortened."""
    made: list[str] = []
    line = ""
    for word in text.split():
        longer = f"{line} {word}".strip()
        if width_of(longer, size) <= width:
            line = longer
            continue
        if line:
            made.append(line)
        line = fitted(word, size, width)
    made += [line] if line else []
    if len(made) > lines:
        made = [*made[: lines - 1], fitted(made[lines - 1] + " …", size, width)]
    return made


_LARGEST_FILE = 1 << 28
_CHECKS = ((255, 255, 255), (214, 219, 226))
_SQUARE = 8


class Picture(NamedTuple):
    """The pixels as they are stored, in RGB, and how EXIF wants them turned."""

    pixels: Image.Image
    orientation: int


def read_picture(path: Path) -> Picture:
    """Decode an image; whatever its decoder raises where it is damaged."""
    content = read_bytes(path, limit=_LARGEST_FILE)
    image = opened(content)
    image.load()
    exif = image.info.get("exif")
    orientation = exif_orientation(exif.removeprefix(b"Exif\0\0")) if isinstance(exif, bytes) else 1
    return Picture(_as_colours(image), orientation)


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
    numbers = np.asarray(values, dtype=np.float64)
    some = numbers[np.isfinite(numbers)]
    low, high = np.quantile(some, (0.005, 0.995)) if some.size else (0.0, 1.0)
    if high <= low and some.size:
        low, high = some.min(), some.max()
    return painted(np.stack([numbers] * 3, axis=-1), float(low), float(high))


def painted(numbers: npt.NDArray[np.float64], low: float, high: float) -> Image.Image:
    """Numbers of three channels as colours, from this lowest to this highest one. What is no number is magenta."""
    from PIL import Image

    finite, span = np.isfinite(numbers), high - low if high > low else 1.0
    pixels = (np.clip((np.where(finite, numbers, low) - low) / span, 0, 1) * 255).astype(np.uint8)
    pixels[~finite.all(axis=-1)] = (255, 0, 255)
    return Image.fromarray(pixels)


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """The picture as EXIF wants it shown."""
    from PIL import Image

    how = Image.Transpose
    steps = (
        how.FLIP_LEFT_RIGHT,
        how.ROTATE_180,
        how.FLIP_TOP_BOTTOM,
        how.TRANSPOSE,
        how.ROTATE_270,
        how.TRANSVERSE,
        how.ROTATE_90,
    )
    return image.transpose(steps[orientation - 2]) if orientation > 1 else image


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
