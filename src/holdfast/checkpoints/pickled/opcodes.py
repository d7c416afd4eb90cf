"""The instructions of a pickle stream, one after the other, with their arguments. Nothing is done with them here.

Python's own `pickletools` reads the same, but as far as a stream may ask for: a length of a terabyte, a line of 200 MB. And it
reads some names in another way than the unpickler does, which is a way to hide a name. A test holds the two side by side.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from typing import IO, Any

from holdfast.checkpoints.pickled.nodes import Blob, CutShort, LongText, NotFollowed

LARGE = 1 << 20  # bytes; what is larger is described, not kept
_CHUNK = 1 << 18
_LINE = 1 << 16  # a number of more digits than that takes long to read, and means nothing
_INT_BYTES = 512


class Source:
    """A part of a file that is read forward, with the offset in the file at hand."""

    def __init__(self, file: IO[bytes], start: int = 0, end: int | None = None, *, located: bool = True) -> None:
        self._file, self._end = file, end
        self.buffer, self.at, self._base = b"", 0, start
        self._located = located  # offsets are those of the checkpoint's own file

    @property
    def offset(self) -> int:
        """Where in the file the next byte lies."""
        return self._base + self.at

    def part(self, start: int, end: int) -> Source:
        """Another reader of the same file."""
        return Source(self._file, start, end, located=self._located)

    def byte(self) -> int:
        """The next byte as a number."""
        at = self.at
        if at >= len(self.buffer):
            self.fill(1)
            at = self.at
        self.at = at + 1
        return self.buffer[at]

    def take(self, size: int) -> bytes:
        """The next bytes, all of them."""
        at = self.at
        if at + size > len(self.buffer):
            self.fill(size)
            at = self.at
        self.at = at + size
        return self.buffer[at : at + size]

    def blob(self, size: int) -> Blob:
        """The next bytes; a large run is passed over."""
        offset = self.offset if self._located else None
        if size <= LARGE:
            return Blob(self.take(size), size, offset)
        self.skip(size)
        return Blob(None, size, offset)

    def skip(self, size: int) -> None:
        """Pass over bytes that must be there."""
        if size >= 1 << 62:
            raise CutShort
        if size:
            end = self.offset + size
            self.buffer, self.at, self._base = b"", 0, end - 1
            self.take(1)

    def line(self, limit: int = _LINE) -> bytes:
        """The next line, without its end."""
        while (end := self.buffer.find(b"\n", self.at)) < 0:
            have = len(self.buffer) - self.at
            if have > limit:
                raise NotFollowed("a line of text that is too long")
            self.fill(have + 1)
        line = self.buffer[self.at : end]
        self.at = end + 1
        return line

    def fill(self, size: int) -> None:
        """Have at least so many bytes in the buffer."""
        self._base, self.buffer, self.at = self.offset, self.buffer[self.at :], 0
        here = self._base + len(self.buffer)
        want = max(size - len(self.buffer), _CHUNK)
        if self._end is not None:
            want = min(want, self._end - here)
        if want > 0:
            self._file.seek(here)
            self.buffer += self._file.read(want)
        if len(self.buffer) < size:
            raise CutShort


def _nothing(_: Source) -> None:
    return None


def _fixed(code: str) -> Callable[[Source], Any]:
    unpack, size = struct.Struct(code).unpack_from, struct.calcsize(code)

    def read(source: Source) -> Any:
        if source.at + size > len(source.buffer):
            source.fill(size)
        at = source.at
        source.at = at + size
        return unpack(source.buffer, at)[0]

    return read


_u1, _u2, _u4, _u8 = Source.byte, _fixed("<H"), _fixed("<I"), _fixed("<Q")


def _text(length: Callable[[Source], int]) -> Callable[[Source], str | LongText]:
    def read(source: Source) -> str | LongText:
        size = length(source)
        if size > LARGE:
            source.skip(size)
            return LongText(size)
        return source.take(size).decode("utf-8", "replace")  # half a character could not be printed

    return read


def _old_text(length: Callable[[Source], int]) -> Callable[[Source], Any]:
    """A `str` of Python 2: text in most cases, bytes in some."""

    def read(source: Source) -> Any:
        blob = source.blob(length(source))
        return blob if blob.data is None else _as_text(blob.data)

    return read


def _as_text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _bytes(length: Callable[[Source], int]) -> Callable[[Source], Blob]:
    return lambda source: source.blob(length(source))


def _long(length: Callable[[Source], int]) -> Callable[[Source], Any]:
    def read(source: Source) -> Any:
        size = length(source)
        if size < 0:
            raise NotFollowed("a number of negative length")
        if size > _INT_BYTES:
            source.skip(size)
            return LongText(size)
        return int.from_bytes(source.take(size), "little", signed=True)

    return read


def _decimal(source: Source) -> Any:
    line = source.line()
    if line in (b"00", b"01"):
        return line == b"01"
    line = line.rstrip(b"L").strip()
    if len(line) > 2 * _INT_BYTES:
        return LongText(len(line))
    return int(line, 0)


def _name_pair(source: Source) -> tuple[str, str]:
    return source.line().decode("utf-8"), source.line().decode("utf-8")


def _quoted(source: Source) -> str:
    line = source.line(LARGE).strip()
    if len(line) < 2 or line[0] != line[-1] or line[:1] not in (b"'", b'"'):
        raise NotFollowed("a text without its quotes")
    return _as_text(codecs.escape_decode(line[1:-1])[0])  # what the unpickler does


def _escaped(source: Source) -> str:
    text = source.line(LARGE).decode("raw-unicode-escape")
    return text if text.isprintable() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


OPCODES: dict[int, tuple[str, Callable[[Source], Any]]] = {
    ord(code): (name, read)
    for code, name, read in (
        ("(", "mark", _nothing),
        (".", "stop", _nothing),
        ("0", "pop", _nothing),
        ("1", "pop_mark", _nothing),
        ("2", "dup", _nothing),
        ("F", "value", lambda source: float(source.line())),
        ("I", "value", _decimal),
        ("J", "value", _fixed("<i")),
        ("K", "value", _u1),
        ("L", "value", _decimal),
        ("M", "value", _u2),
        ("N", "value", _nothing),
        ("P", "persid", lambda source: source.line().decode("utf-8")),
        ("Q", "binpersid", _nothing),
        ("R", "reduce", _nothing),
        ("S", "value", _quoted),
        ("T", "value", _old_text(_fixed("<i"))),
        ("U", "value", _old_text(_u1)),
        ("V", "value", _escaped),
        ("X", "value", _text(_u4)),
        ("a", "append", _nothing),
        ("b", "build", _nothing),
        ("c", "name", _name_pair),
        ("d", "dict", _nothing),
        ("}", "empty_dict", _nothing),
        ("e", "appends", _nothing),
        ("g", "get", lambda source: int(source.line())),
        ("h", "get", _u1),
        ("i", "inst", _name_pair),
        ("j", "get", _u4),
        ("l", "list", _nothing),
        ("]", "empty_list", _nothing),
        ("o", "obj", _nothing),
        ("p", "put", lambda source: int(source.line())),
        ("q", "put", _u1),
        ("r", "put", _u4),
        ("s", "setitem", _nothing),
        ("t", "tuple", _nothing),
        (")", "empty_tuple", _nothing),
        ("u", "setitems", _nothing),
        ("G", "value", _fixed(">d")),
        ("\x80", "proto", _u1),
        ("\x81", "newobj", _nothing),
        ("\x82", "extension", _u1),
        ("\x83", "extension", _u2),
        ("\x84", "extension", _fixed("<i")),
        ("\x85", "tuple1", _nothing),
        ("\x86", "tuple2", _nothing),
        ("\x87", "tuple3", _nothing),
        ("\x88", "value", lambda _: True),
        ("\x89", "value", lambda _: False),
        ("\x8a", "value", _long(_u1)),
        ("\x8b", "value", _long(_fixed("<i"))),
        ("B", "value", _bytes(_u4)),
        ("C", "value", _bytes(_u1)),
        ("\x8c", "value", _text(_u1)),
        ("\x8d", "value", _text(_u8)),
        ("\x8e", "value", _bytes(_u8)),
        ("\x8f", "empty_set", _nothing),
        ("\x90", "additems", _nothing),
        ("\x91", "frozenset", _nothing),
        ("\x92", "newobj_ex", _nothing),
        ("\x93", "stack_name", _nothing),
        ("\x94", "memoize", _nothing),
        ("\x95", "frame", _u8),
        ("\x96", "value", _bytes(_u8)),
        ("\x97", "buffer", _nothing),
        ("\x98", "readonly_buffer", _nothing),
    )
}
