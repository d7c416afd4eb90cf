"""Read every byte of some storages once: fast, in little memory, and whatever happens to the files meanwhile.

A few threads read a megabyte at a time into a buffer of their own, and while it is in the processor's cache, take its checksum
and see whether its numbers are finite. Large storages are cut into pieces, so that all threads have work. Files are read and not
mapped: one that is truncated while it is mapped would end the process.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from holdfast.checkpoints.contents import Storage
from holdfast.checkpoints.numbers import Bytes, Layout, is_finite

_DIVISOR = 0xEDB8_8320
_ONE = 1 << 31  # x^0


def joined(first: int, second: int, length: int) -> int:
    """The checksum of some bytes followed by `length` others, from the checksum of each."""
    return _product(_power(8 * length), first) ^ second


@lru_cache(maxsize=64)
def _power(exponent: int) -> int:
    """x to the power of a number, as what is left after the division; by squaring."""
    result, square = _ONE, _ONE >> 1
    while exponent:
        if exponent & 1:
            result = _product(result, square)
        square = _product(square, square)
        exponent >>= 1
    return result


def _product(left: int, other: int) -> int:
    result, bit = 0, _ONE
    while bit:
        if left & bit:
            result ^= other
        other = (other >> 1) ^ (_DIVISOR if other & 1 else 0)
        bit >>= 1
    return result


CHUNK = 1 << 20  # bytes that are read at once: what fits into the cache beside a core
PIECE = 32 << 20  # bytes that one thread reads of one storage before it takes the next
_WORKERS = 4  # more do not make a disk faster
_ALIGNED = 64  # bytes: a line of the cache

Crc32 = Callable[[memoryview, int], int]
Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class Wanted:
    """A storage that is to be read, and as what kinds of numbers its bytes are to be looked at."""

    storage: Storage
    layouts: tuple[Layout, ...] = ()


@dataclass(slots=True)
class Scanned:
    """What was found in a storage. With an `error` it was not read to its end."""

    read: int = 0  # bytes
    crc32: int | None = None  # only where the storage says what it must be
    bad: list[tuple[int, int]] = field(default_factory=list)  # from where to where, in bytes, there are NaN or Inf
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes of one storage."""

    wanted: int  # its number
    begin: int
    size: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """What a thread reads in one go: a part of a large storage, or several small ones of one file."""

    file: Path
    parts: list[_Part]

    @property
    def size(self) -> int:
        """Bytes of all its parts."""
        return sum(part.size for part in self.parts)


def scan(
    wanted: Sequence[Wanted], *, crc32: Crc32 = zlib.crc32, progress: Progress | None = None, workers: int | None = None
) -> list[Scanned]:
    """Read all of them; what cannot be read is told in the answer, never raised. `progress` is called in this thread."""
    pieces = list(_pieces(wanted))
    scanned = [Scanned() for _ in wanted]
    done, total = 0, sum(piece.size for piece in pieces)
    for piece, results in _read_all(_Reading(wanted, crc32), pieces, workers or min(_WORKERS, _cores())):
        for part, result in zip(piece.parts, results, strict=True):
            _add(scanned[part.wanted], part, result)
        done += piece.size
        if progress is not None:
            progress(done, total)
    return scanned


def _read_all(reading: _Reading, pieces: list[_Piece], workers: int) -> Iterator[tuple[_Piece, list[Scanned]]]:
    """The pieces in their order, with what was found in each."""
    if workers < 2 or len(pieces) < 2:
        yield from ((piece, reading.read(piece)) for piece in pieces)
        return
    pool = ThreadPoolExecutor(min(workers, len(pieces)), "holdfast-scan")
    try:
        results = pool.map(reading.read, pieces)
    except RuntimeError:  # Python is ending, and starts no thread any more
        results = map(reading.read, pieces)
    try:
        yield from zip(pieces, results, strict=True)
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupt does not wait for the rest of 10 GB


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def _pieces(wanted: Sequence[Wanted]) -> Iterator[_Piece]:
    """In the order in which they lie on the disk; small ones together, so that each thread has work for a while."""
    order = sorted(range(len(wanted)), key=lambda i: (str(wanted[i].storage.file), wanted[i].storage.offset))
    file, parts, size = Path(), list[_Part](), 0
    for number in order:
        storage = wanted[number].storage
        for begin in range(0, storage.size, PIECE):
            part = _Part(number, begin, min(PIECE, storage.size - begin))
            if parts and (file != storage.file or size + part.size > CHUNK):
                yield _Piece(file, parts)
                parts, size = [], 0
            file, size = storage.file, size + part.size
            parts.append(part)
    if parts:
        yield _Piece(file, parts)


def _add(whole: Scanned, part: _Part, result: Scanned) -> None:
    """Put what was found in a part behind what was found before it."""
    whole.read += result.read
    whole.error = whole.error or result.error
    if result.crc32 is not None:
        whole.crc32 = result.crc32 if part.begin == 0 else joined(whole.crc32 or 0, result.crc32, part.size)
    for begin, end in result.bad:
        if whole.bad and whole.bad[-1][1] == begin:
            whole.bad[-1] = (whole.bad[-1][0], end)
        else:
            whole.bad.append((begin, end))


class _Reading:
    """Reads pieces; each thread has a buffer of its own, which it uses again and again."""

    def __init__(self, wanted: Sequence[Wanted], crc32: Crc32) -> None:
        self._wanted, self._crc32 = wanted, crc32
        self._local = threading.local()

    def read(self, piece: _Piece) -> list[Scanned]:
        """What is in each part of a piece."""
        try:
            file = os.open(piece.file, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            return [Scanned(error="it vanished while it was read")] * len(piece.parts)
        except OSError as error:
            return [Scanned(error=_words(error))] * len(piece.parts)
        try:
            return [self._read_part(file, part) for part in piece.parts]
        finally:
            os.close(file)

    def _read_part(self, file: int, part: _Part) -> Scanned:
        """Part of a storage, a chunk at a time."""
        wanted, buffer = self._wanted[part.wanted], self._buffer()
        result = Scanned(crc32=None if wanted.storage.crc32 is None else 0)
        while result.read < part.size and not result.error:
            memory = buffer[: min(CHUNK, part.size - result.read)]
            at = part.begin + result.read
            result.error = fill(file, memory.data, wanted.storage.offset + at)
            if not result.error:
                self._look(memory, wanted, at, result)
        return result

    def _look(self, memory: Bytes, wanted: Wanted, begin: int, result: Scanned) -> None:
        """Look at some bytes, of which the first is number `begin` of its storage."""
        size = memory.size
        if result.crc32 is not None:
            result.crc32 = self._crc32(memory.data, result.crc32)
        for layout in wanted.layouts:
            if not is_finite(memory[: size - size % layout.size], layout):
                result.bad.append((begin, begin + size))
                break
        result.read += size

    def _buffer(self) -> Bytes:
        buffer: Bytes | None = getattr(self._local, "buffer", None)
        if buffer is None:
            memory = np.empty(CHUNK + _ALIGNED, np.uint8)
            begin = -memory.ctypes.data % _ALIGNED
            buffer = self._local.buffer = memory[begin : begin + CHUNK]
        return buffer


def fill(file: int, view: memoryview, offset: int) -> str:
    """Read into memory until it is full; returns what went wrong."""
    got = 0
    try:
        while got < len(view):
            more = os.preadv(file, [view[got:]], offset + got)
            if not more:
                return "it became shorter while it was read"
            got += more
    except OSError as error:
        return _words(error)
    return ""


def _words(error: OSError) -> str:
    return f"it cannot be read: {(error.strerror or str(error)).lower()}"
