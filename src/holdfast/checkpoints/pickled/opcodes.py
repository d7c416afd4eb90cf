"""The instructions of a pickle stream, one after the other, with their arguments. Nothing is done with them here.

Python's own `pickletools` reads the same, but as far as a stream may ask for: a length of a terabyte, a line of 200 MB. And it
reads some names in another way than the unpickler does, which is a way to hide a name. A test holds the two side by side.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import struct
from collections.abc import Callable, Iterator
from typing import Any, Protocol

LARGE = 1 << 16  # bytes; a longer run is described and read again where its bytes matter
_LONGEST_LINE = 1 << 20
_CHUNK = 1 << 18
_LINE = 1 << 16  # a number of more digits than that takes long to read, and means nothing
_INT_BYTES = 512


class CutShort(Exception):
    """The stream ends inside an instruction."""


class NotFollowed(Exception):
    """The stream does something that cannot be followed; the text says what."""


class _File(Protocol):
    def seek(self, offset: int, /) -> int: ...
    def read(self, size: int, /) -> bytes: ...


class Source:
    """A part of a file that is read forward, with the offset in the file at hand."""

    def __init__(self, file: _File, start: int = 0, end: int | None = None, *, located: bool = True) -> None:
        self._file, self._end = file, end
        self.buffer, self.at, self._base = b"", 0, start
        self._located = located  # offsets are those of the checkpoint's own file
        self.keep: Callable[[int], bool] = lambda _: True  # whether so many bytes more may be held in memory

    @property
    def offset(self) -> int:
        """Where in the file the next byte lies."""
        return self._base + self.at

    def part(self, start: int, end: int) -> Source:
        """Another reader of the same file."""
        part = Source(self._file, start, end, located=self._located)
        part.keep = self.keep
        return part

    def chunks(self, size: int = _CHUNK) -> Iterator[bytes]:
        """All that is left, in pieces of `size`; the last may be shorter."""
        while True:
            with contextlib.suppress(CutShort):
                self.fill(size)
            if not self.buffer:
                return
            chunk, self.buffer, self._base = self.buffer[:size], self.buffer[size:], self._base + min(size, len(self.buffer))
            yield chunk

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
        """The next bytes; a long run, or one beyond what may be held, is skipped."""
        begin, offset = self.offset, self.offset if self._located else None
        if size <= LARGE and self.keep(size):
            return Blob(self.take(size), size, offset)
        self.skip(size)
        return Blob(None, size, offset, self, begin)

    def text(self, size: int) -> str | LongText:
        """The next bytes as text, by the same rule."""
        if size <= LARGE and self.keep(size):
            return self.take(size).decode("utf-8", "replace")  # half a character could not be printed
        blob = self.blob(size)
        return LongText(size, blob)

    def skip(self, size: int) -> None:
        """Pass over bytes that must be there."""
        if size >= 1 << 62:
            raise CutShort
        if self.at + size <= len(self.buffer):
            self.at += size
        elif size:
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


class Blob:
    """A run of bytes, and where it lies in the file; of a large one the bytes are not kept."""

    __slots__ = ("_begin", "_source", "data", "offset", "size")

    def __init__(
        self, data: bytes | None, size: int, offset: int | None = None, source: Source | None = None, begin: int = 0
    ) -> None:
        self.data, self.size, self.offset = data, size, offset  # offset None: it lies nowhere as such
        self._source, self._begin = source, begin

    def open(self) -> Source:
        """A reader of these bytes. Raises NotFollowed if they cannot be had again."""
        if self.data is not None:
            return Source(io.BytesIO(self.data), 0, self.size, located=False)
        if self._source is None:
            raise NotFollowed("bytes inside it are written as text, and too long to be looked into")
        return self._source.part(self._begin, self._begin + self.size)


class LongText:
    """A text that is too long to be kept."""

    __slots__ = ("_latin1", "size", "utf8")

    def __init__(self, size: int, utf8: Blob | None = None) -> None:
        self.size, self.utf8 = size, utf8
        self._latin1: Blob | None = None

    def latin1(self) -> Blob:
        """The bytes of which this text has one character each, as protocol 2 writes bytes."""
        if self._latin1 is None and self.utf8 is not None:
            self._latin1 = made_again(self._one_byte_each, sum(map(len, self._one_byte_each())))
        return self._latin1 or Blob(None, self.size)

    def _one_byte_each(self) -> Iterator[bytes]:
        decoder = codecs.getincrementaldecoder("utf-8")()
        for chunk in self.utf8.open().chunks() if self.utf8 is not None else ():
            yield decoder.decode(chunk).encode("latin-1")


def made_again(chunks: Callable[[], Iterator[bytes]], size: int) -> Blob:
    """Bytes that are held nowhere, but made each time they are read."""
    return Blob(None, size, source=Source(_MadeAgain(chunks), 0, size, located=False))


class _MadeAgain:
    """Bytes that come in pieces, read as if they were a file."""

    def __init__(self, chunks: Callable[[], Iterator[bytes]]) -> None:
        self._make = chunks
        self._chunks, self._ready, self._at = chunks(), b"", 0

    def seek(self, offset: int, /) -> int:
        """Forward, or from the beginning once more."""
        if offset < self._at:
            self._chunks, self._ready, self._at = self._make(), b"", 0
        while self._at < offset and self.read(min(offset - self._at, _CHUNK)):
            pass
        return self._at

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; fewer only at the end."""
        while len(self._ready) < size and (chunk := next(self._chunks, b"")):
            self._ready += chunk
        taken, self._ready = self._ready[:size], self._ready[size:]
        self._at += len(taken)
        return taken


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
    return lambda source: source.text(length(source))


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


def _quoted(source: Source) -> str | LongText:
    line = source.line(_LONGEST_LINE).strip()
    if len(line) < 2 or line[0] != line[-1] or line[:1] not in (b"'", b'"'):
        raise NotFollowed("a text without its quotes")
    return _kept(source, _as_text(codecs.escape_decode(line[1:-1])[0]))  # what the unpickler does


def _escaped(source: Source) -> str | LongText:
    text = source.line(_LONGEST_LINE).decode("raw-unicode-escape")
    return _kept(source, text if text.isprintable() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _kept(source: Source, text: str) -> str | LongText:
    return text if source.keep(len(text)) else LongText(len(text))


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
        ("\x85", "last", lambda _: 1),
        ("\x86", "last", lambda _: 2),
        ("\x87", "last", lambda _: 3),
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
        ("\x90", "appends", _nothing),
        ("\x91", "frozenset", _nothing),
        ("\x92", "newobj_ex", _nothing),
        ("\x93", "stack_name", _nothing),
        ("\x94", "memoize", _nothing),
        ("\x95", "ignore", _u8),
        ("\x96", "value", _bytes(_u8)),
        ("\x97", "buffer", _nothing),
        ("\x98", "ignore", _nothing),
    )
}
