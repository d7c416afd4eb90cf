"""A large JSON object, read row by row: each element of its lists, with the place in the file where its bytes lie.

The text is taken as Latin-1 while it is cut into values, so that a character is a byte: places are places in the file, and a
value with other letters is decoded once more as the UTF-8 that it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from holdfast.units import size

_BLOCK = 1 << 20
_LARGEST = 16 << 20  # bytes of one value; an annotation has a few thousand
_SPACE = " \t\n\r"


class JsonRow(NamedTuple):
    """A value under a key of the object: an element of a list, or what is no list. A list begins with an empty one."""

    key: str
    value: Any
    start: int
    end: int
    in_list: bool


def json_rows(path: Path) -> Iterator[JsonRow]:
    """The rows of a file. ValueError where it is not JSON, is truncated, or one value is larger than 16 MB."""
    with path.open("rb") as file:
        window = _Window(file)
        window.take("{")
        while (sign := window.peek()) != "}":
            key = str(window.value()[0])
            window.take(":")
            if window.peek() != "[":
                yield JsonRow(key, *window.value(), in_list=False)
            else:
                window.take("[")
                yield JsonRow(key, [], window.place, window.place, in_list=False)
                while window.peek() != "]":
                    yield JsonRow(key, *window.value(), in_list=True)
                    window.comma_before("]")
                window.take("]")
            window.comma_before("}")
        window.take(sign)
        if window.peek():
            raise ValueError(f"more text after the end of the object, at byte {window.place:,}")


class _Window:
    """The part of the file that is looked at, and the place in it up to which everything was read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._text = ""
        self._at = 0
        self._before = len(b"\xef\xbb\xbf") if file.read(3) == b"\xef\xbb\xbf" else 0  # bytes of the file before the window
        file.seek(self._before)
        self._decoder = json.JSONDecoder()

    @property
    def place(self) -> int:
        """How many bytes of the file were read."""
        return self._before + self._at

    def _more(self) -> bool:
        """Forget what was read, and add as much as there is, at least a block; False at the end of the file."""
        rest = self._text[self._at :]
        content = self._file.read(max(_BLOCK, len(rest)))
        self._before, self._at, self._text = self.place, 0, rest + content.decode("latin-1")
        return bool(content)

    def peek(self) -> str:
        """The next sign that is no space; empty at the end of the file."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if not self._more():
                return ""

    def take(self, sign: str) -> None:
        """Go past this sign; ValueError where another one stands."""
        met = self.peek()
        if met != sign:
            raise ValueError(f"{met or 'the end of the file'} where {sign} must be, at byte {self.place:,}")
        self._at += 1

    def comma_before(self, end: str) -> None:
        """Go past the comma between two values."""
        if self.peek() != end:
            self.take(",")
            if self.peek() == end:
                raise ValueError(f"{end} after a comma, at byte {self.place:,}")

    def value(self) -> tuple[Any, int, int]:
        """The next value, with the places in the file where it begins and ends."""
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
                wrong = ""
            except json.JSONDecodeError as error:
                value, end, wrong = None, len(self._text), f"{error.msg}, at byte {self._before + error.pos:,}"
            if end < len(self._text) or not self._may_grow(wrong) or not self._more():  # a number may go on behind the window
                break
        if wrong:
            raise ValueError(wrong)
        start, piece = self.place, self._text[self._at : end]
        self._at = end
        return (value if piece.isascii() else json.loads(piece.encode("latin-1"))), start, self.place

    def _may_grow(self, wrong: str) -> bool:
        if len(self._text) - self._at <= _LARGEST:
            return True
        raise ValueError(wrong or f"a value of more than {size(_LARGEST)}, at byte {self.place:,}")
