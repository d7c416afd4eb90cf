"""The index of a zip archive, and the first record of one whose index is missing. Only headers are read.

Python's `zipfile` is not used: it raises where the interest begins. What is looked at is what torch's own reader goes by.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import IO

STORED, DEFLATED = 0, 8
_END, _END64, _LOCATOR, _ENTRY, _LOCAL = (b"PK" + pair for pair in (b"\5\6", b"\6\6", b"\6\7", b"\1\2", b"\3\4"))
_FULL = 0xFFFFFFFF  # "see the extra field"
_TAIL = 22 + 65535
_LARGEST_INDEX = 64 << 20


@dataclass(slots=True)
class Record:
    """A record of the archive: where its bytes lie, and what is wrong with it, if anything."""

    name: str
    start: int  # of its own header
    offset: int  # of its bytes
    size: int  # unpacked
    packed: int  # in the file
    method: int = STORED
    crc32: int = 0
    problem: str = ""

    @property
    def end(self) -> int:
        """Offset behind its bytes."""
        return self.offset + self.packed


class BrokenIndex(Exception):
    """An index that does not add up; the text says why."""


def read_index(file: IO[bytes], size: int, start: int = 0) -> list[Record] | None:
    """The records, in the order of the index; None if the file has no index. Raises BrokenIndex, OSError.

    An archive of that size may begin at `start` in a larger file; the offsets of its records are counted from there.
    """
    tail_at = max(0, size - _TAIL)
    tail = _read(file, start + tail_at, size - tail_at)
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < 22:
        return None
    count, length, first = struct.unpack("<HII", tail[at + 10 : at + 20])
    before = tail_at + at
    locator = _read(file, start + before - 20, 20) if before >= 20 else b""
    if locator.startswith(_LOCATOR):
        before = struct.unpack("<Q", locator[8:16])[0]
        larger = _read(file, start + before, 56) if before + 56 <= size else b""
        if len(larger) < 56 or not larger.startswith(_END64):
            raise BrokenIndex("the end of the index is not where it should be")
        count, length, first = struct.unpack("<QQQ", larger[32:56])
    if first + length > before or length > _LARGEST_INDEX or 46 * count > length:
        raise BrokenIndex("the index is not where it should be")
    return list(_entries(file, _read(file, start + first, length), count, first, start))


def _entries(file: IO[bytes], index: bytes, count: int, limit: int, base: int) -> Iterator[Record]:
    at = 0
    for _ in range(count):
        if index[at : at + 4] != _ENTRY or len(index) < at + 46:
            raise BrokenIndex("an entry of the index is damaged")
        flags, method, _, _, crc, packed, size = struct.unpack("<4H3I", index[at + 8 : at + 28])
        names, extras, comment = struct.unpack("<3H", index[at + 28 : at + 34])
        start = struct.unpack("<I", index[at + 42 : at + 46])[0]
        name = index[at + 46 : at + 46 + names]
        extra = index[at + 46 + names : at + 46 + names + extras]
        at += 46 + names + extras + comment
        size, packed, start = _larger(extra, size, packed, start)
        record = Record(name.decode("utf-8", "replace"), start, start, size, packed, method, crc)
        record.problem = _place(file, record, name, limit, base) or _flaw(flags, record)
        yield record


def _larger(extra: bytes, *values: int) -> list[int]:
    """Sizes and offset of a record beyond 4 GB, which stand in its extra field."""
    wide = b""
    while len(extra) >= 4:
        kind, length = struct.unpack("<HH", extra[:4])
        if kind == 1:
            wide = extra[4 : 4 + length]
            break
        extra = extra[4 + length :]
    sizes = iter(struct.unpack(f"<{len(wide) // 8}Q", wide[: len(wide) // 8 * 8]))
    return [next(sizes, value) if value == _FULL else value for value in values]


def _flaw(flags: int, record: Record) -> str:
    if flags & 1:
        return "is encrypted"
    if record.method not in (STORED, DEFLATED):
        return "is compressed in a way that torch cannot read"
    if record.method == STORED and record.size != record.packed:
        return "has two different sizes in the index"
    return ""


def _place(file: IO[bytes], record: Record, name: bytes, limit: int, base: int) -> str:
    """Find where the bytes begin: the local header has a padding of its own."""
    header = _read(file, base + record.start, 30 + len(name)) if record.start + 30 <= limit else b""
    if not header.startswith(_LOCAL) or len(header) < 30:
        return "is not where the index says"
    flags = struct.unpack("<H", header[6:8])[0]
    packed, size, names, extras = struct.unpack("<IIHH", header[18:30])
    record.offset = record.start + 30 + names + extras
    if record.end > limit:
        return "is longer than the file"
    if names != len(name) or header[30:] != name:
        return "has a different name in the index"
    if not flags & 8 and _FULL not in (packed, size) and (packed, size) != (record.packed, record.size):
        return "has a different size in the index"
    return ""


def overlapping(records: list[Record]) -> tuple[str, str] | None:
    """Two records that lie on each other, by name."""
    placed = sorted((record for record in records if not record.problem), key=lambda record: (record.start, record.end))
    for earlier, other in pairwise(placed):
        if other.start < earlier.end:
            return earlier.name, other.name
    return None


def first_record(file: IO[bytes], size: int) -> Record | None:
    """The record that a file begins with, up to the end of the file: torch writes how long it is behind it."""
    header = _read(file, 0, 30)
    if not header.startswith(_LOCAL) or len(header) < 30:
        return None
    names, extras = struct.unpack("<HH", header[26:30])
    offset = 30 + names + extras
    name = _read(file, 30, names).decode("utf-8", "replace")
    return Record(name, 0, offset, max(0, size - offset), max(0, size - offset))


def unpack(file: IO[bytes], record: Record, limit: int) -> bytes | None:
    """The bytes of a record, unpacked; None if they cannot be had or are more than `limit`."""
    if record.problem or record.size > limit or record.packed > limit:
        return None
    data = _read(file, record.offset, record.packed)
    if record.method == STORED:
        return data if len(data) == record.size else None
    try:
        data = zlib.decompressobj(-15).decompress(data, record.size + 1)
    except zlib.error:
        return None
    return data if len(data) == record.size else None


def _read(file: IO[bytes], at: int, length: int) -> bytes:
    if length <= 0 or at < 0 or at >= 1 << 62:
        return b""
    file.seek(at)
    return file.read(length)
