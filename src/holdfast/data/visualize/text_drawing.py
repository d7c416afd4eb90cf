"""A passage of text with its tokens in colours; those that a tokenizer or a model does not know are marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.data.tokenizers import Tokenizer
from holdfast.data.visualize.colours import BAD, CARD, INK, LINE, SOFT
from holdfast.data.visualize.letters import put, width_of
from holdfast.data.visualize.sample import Size

if TYPE_CHECKING:
    from PIL import Image

Token = tuple[str, str]  # text, and its kind: "" (between tokens), known, unknown, or shared (with another split)
_SIZE, _STEP, _EDGE = 12, 18, 8
_KNOWN = ("#dbeafe", "#dcfce7")
_UNKNOWN, _SHARED = "#fecaca", "#fde68a"


def tokens_of(text: str, tokenizer: Tokenizer | None, limit: int | None) -> tuple[Token, ...]:
    """The text in tokens. Without a tokenizer only characters that are no valid UTF-8 are marked."""
    if tokenizer is None:
        return tuple(_without_tokenizer(text))
    made: list[Token] = []
    place = 0
    for number, start, end in tokenizer.pieces(text):
        if start > place:
            made.append((text[place:start], ""))
        start = max(start, place)  # several tokens may share a character
        unknown = number == tokenizer.unknown or number < 0 or (limit is not None and number >= limit)
        if end > start:
            made.append((text[start:end], "unknown" if unknown or "\ufffd" in text[start:end] else "known"))
        place = max(place, end)
    return (*made, (text[place:], "")) if place < len(text) else tuple(made)


def _without_tokenizer(text: str) -> Iterator[Token]:
    parts = text.split("\ufffd")
    for place, part in enumerate(parts):
        if part:
            yield part, ""
        if place + 1 < len(parts):
            yield "\ufffd", "unknown"


def with_lines(tokens: Sequence[Token], text: str, lines: Sequence[str]) -> tuple[Token, ...]:
    """Mark the tokens of some lines of the text, unless they are marked already."""
    places = [(start, start + len(line)) for line in lines if (start := text.find(line)) >= 0]
    made, place = [], 0
    for words, kind in tokens:
        inside = any(start <= place < end for start, end in places)
        made.append((words, "shared" if inside and kind != "unknown" else kind))
        place += len(words)
    return tuple(made)


def draw_text(tokens: Sequence[Token], room: Size) -> Image.Image:
    """The tile; what does not fit is left out."""
    from PIL import Image, ImageDraw

    made = Image.new("RGB", room, CARD)
    draw = ImageDraw.Draw(made)
    draw.rectangle((0, 0, room[0] - 1, room[1] - 1), outline=LINE)
    across, down, known = float(_EDGE), _EDGE, 0
    for words, kind in tokens:
        known += kind == "known"
        for part in _parts(words, room[0] - 2 * _EDGE):
            width = width_of(part, _SIZE)
            if part == "\n" or across + width > room[0] - _EDGE:
                across, down = float(_EDGE), down + _STEP
            if down + _STEP > room[1] - 2:
                put(draw, (room[0] - _EDGE, room[1] - 2), "…", _SIZE, SOFT, anchor="rd")
                return made
            if part == "\n":
                continue
            place = (across, down, across + width, down + _STEP - 3)
            if kind == "unknown":
                draw.rectangle(place, fill=_UNKNOWN, outline=BAD)
            elif kind == "known":
                draw.rectangle(place, fill=_KNOWN[known % 2])
            elif kind == "shared":
                draw.rectangle(place, fill=_SHARED)
            put(draw, (across, down + 1), part, _SIZE, INK)
            across += width
    return made


def _parts(words: str, width: float) -> Iterator[str]:
    """A token in pieces that fit a line; the end of a line is a piece of its own."""
    for place, line in enumerate(words.replace("\r", "").split("\n")):
        if place:
            yield "\n"
        part = ""
        for letter in line:
            if part and (letter == " " or width_of(part + letter, _SIZE) > width):
                yield part
                part = ""
            part += letter
        if part:
            yield part
