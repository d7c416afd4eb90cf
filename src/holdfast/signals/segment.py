"""One segment of a table: a memory-mapped file of fixed-width columns that one process writes and any may read.

    bytes 0–7      magic; written last, so that a half-made file is no segment
          8–47     capacity, number of the first row, rows begun, rows published, sealed (each 8 bytes, little endian)
          48–55    length of the description
          64–4095  the description: table and columns, as JSON
          4096–    the columns, one after the other, each capacity × 8 bytes

A row is written into all columns first; then its number is published. A reader looks at the published count
and at nothing behind it, so it never sees half a row, and after a SIGKILL every published row is there: the pages
belong to the kernel, not to the process. `begun` above `published` marks a torn tail: the writer died inside a row.

The blocks of the file are reserved before it is mapped: a write into a mapped hole on a full disk would kill the
training with SIGBUS.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.errors import DamagedSegment
from holdfast.signals.schema import Column, Kind, Table

MAGIC = b"HOLDFST1"
HEADER_BYTES = 4096
_DESCRIPTION_AT = 64
_COUNTERS = struct.Struct("<8s5Q")
SUFFIX = ".seg"


def segment_path(folder: Path, number: int) -> Path:
    """The file of a table's n-th segment."""
    return folder / f"{number:06d}{SUFFIX}"


class Fence:
    """Keeps the processor from moving stores across it.

    ARM may show a later store to another core before an earlier one. Releasing and taking a lock orders them, and
    is the one memory barrier that Python offers without native code.
    """

    def __init__(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        self.release, self.acquire = lock.release, lock.acquire

    def __call__(self) -> None:
        """What stands before it happens before what stands after it."""
        self.release()
        self.acquire()


class SegmentWriter:
    """The writing side; one thread of one process."""

    def __init__(self, path: Path, table: Table, *, capacity: int, first_row: int) -> None:
        size = HEADER_BYTES + len(table.columns) * capacity * 8
        self.path, self.capacity, self.first_row, self.rows = path, capacity, first_row, 0
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            _reserve(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        whole = memoryview(self._map)
        self._numbers = whole[8:56].cast("Q")
        self.views = [
            whole[start : start + capacity * 8].cast("d" if column.kind is Kind.FLOAT else "q")
            for start, column in zip(range(HEADER_BYTES, size, capacity * 8), table.columns, strict=True)
        ]
        self._counters = whole[24:40].cast("Q")
        self._fence = Fence()
        description = _describe(table)
        self._numbers[0], self._numbers[1], self._numbers[5] = capacity, first_row, len(description)
        whole[_DESCRIPTION_AT : _DESCRIPTION_AT + len(description)] = description
        self._fence()
        whole[:8] = MAGIC
        whole.release()

    @property
    def room(self) -> int:
        """Rows that still fit."""
        return self.capacity - self.rows

    def append(self, row: Sequence[float | int]) -> None:
        """Write one row and publish it. A value of the wrong type raises, and nothing is published."""
        at = self.rows
        counters = self._counters
        counters[0] = at + 1
        for view, value in zip(self.views, row):  # noqa: B905 - a length check here is paid on every step
            view[at] = value  # type: ignore[assignment]
        self._fence.release()
        self._fence.acquire()
        counters[1] = self.rows = at + 1

    def extend(self, columns: Sequence[npt.NDArray[Any]], start: int, count: int) -> None:
        """Write `count` rows of ready columns, from their row `start` on, and publish them together."""
        at = self.rows
        self._counters[0] = at + count
        for view, values in zip(self.views, columns, strict=True):
            np.asarray(view)[at : at + count] = values[start : start + count]
        self._fence()
        self._counters[1] = self.rows = at + count

    def seal(self) -> None:
        """Say that no row will follow, and let go of the file. Calling it twice does no harm."""
        if self._map.closed:
            return
        self._fence()  # whoever sees it sealed sees its last row
        self._numbers[4] = 1
        for view in (*self.views, self._counters, self._numbers):
            view.release()
        self._map.close()


class Segment:
    """The reading side: what was published when it was opened, as numpy columns over the mapped file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < HEADER_BYTES:
                raise _damaged(path, "it is shorter than its header")
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        if mapped[:8] != MAGIC:
            raise _damaged(path, "its header is not complete")
        fence = Fence()
        fence()
        header = np.frombuffer(mapped, "<u8", count=6, offset=8)
        self.capacity, self.first_row = int(header[0]), int(header[1])
        self.sealed, begun = bool(header[4]), int(header[2])
        fence()  # the published count is read last of the three: it can only be newer than they are
        self.rows = int(header[3])
        fence()
        self.torn_tail = not self.sealed and begun > self.rows
        self.columns = _read_description(path, mapped, int(header[5]))
        if size < HEADER_BYTES + len(self.columns) * self.capacity * 8 or self.rows > self.capacity:
            raise _damaged(path, "it is truncated")
        self._map = mapped

    def column(self, name: str) -> npt.NDArray[Any]:
        """The published values of one column; strings as their numbers in the dictionary."""
        for index, column in enumerate(self.columns):
            if column.name == name:
                start = HEADER_BYTES + index * self.capacity * 8
                return np.frombuffer(self._map, column.kind.dtype, count=self.rows, offset=start)
        raise KeyError(name)


def has_only(path: str, rows: int) -> bool:
    """Whether a segment still has so many rows and room for more: read from its header, without mapping the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        magic, capacity, _, _, published, sealed = _COUNTERS.unpack(os.pread(descriptor, _COUNTERS.size, 0))
    except (OSError, struct.error):
        return False
    finally:
        os.close(descriptor)
    return bool(magic == MAGIC and published == rows < capacity and not sealed)


def _reserve(descriptor: int, size: int) -> None:
    """Take the blocks now, so that a full disk is an error here and not a SIGBUS later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    block = bytes(1 << 20)  # macOS
    for start in range(0, size, len(block)):
        os.pwrite(descriptor, block[: min(len(block), size - start)], start)


def _describe(table: Table) -> bytes:
    description = json.dumps({"table": table.name, "columns": [[c.name, c.kind.value] for c in table.columns]}).encode()
    if len(description) > HEADER_BYTES - _DESCRIPTION_AT:
        raise ValueError(f"the description of table {table.name} does not fit into a segment's header")
    return description


def _read_description(path: Path, mapped: mmap.mmap, length: int) -> tuple[Column, ...]:
    try:
        return _columns_in(mapped[_DESCRIPTION_AT : _DESCRIPTION_AT + length])
    except (ValueError, KeyError, TypeError):
        raise _damaged(path, "its description cannot be read") from None


@functools.lru_cache(maxsize=64)  # the segments of thousands of ranks say the same
def _columns_in(description: bytes) -> tuple[Column, ...]:
    return tuple(Column(name, Kind(kind), "") for name, kind in json.loads(description)["columns"])


def _damaged(path: Path, why: str) -> DamagedSegment:
    return DamagedSegment(f"{path} cannot be read: {why}.", fix="nothing to do: the other segments are read without it")
