"""Words in pictures. The font comes with Pillow, so that a sheet is the same on every machine.

It knows little more than ASCII; words with other letters are drawn with a usual font of the system, where there is one.
"""

from __future__ import annotations

import functools
import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import ImageDraw

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
