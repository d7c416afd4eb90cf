"""One piece in a file of a torch.distributed.checkpoint folder: what `torch.save` wrote, a zip archive inside a larger file.

Some writers put all tensors of a file into one safetensors block instead; then the place of a tensor is that of the block.
"""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from holdfast.checkpoints.contents import State, Storage
from holdfast.checkpoints.formats.safetensors_file import Entry, read_block
from holdfast.checkpoints.formats.zip_index import STORED, BrokenIndex, Record, read_index
from holdfast.checkpoints.pickled.nodes import StorageUse
from holdfast.checkpoints.pickles import Unpickled, read_pickle

_LONGEST = 64 << 20  # bytes of a pickle that is kept, to know it again
_NOT_WHOLE = "what lies there is not a whole archive of torch"


class BadItem(Exception):
    """At this place lies something else than the index says; the text says what."""

    def __init__(self, words: str, state: State = "torn") -> None:
        super().__init__(words)
        self.state = state


@dataclass(slots=True)
class Item:
    """What lies at a place: a tree, and the storages that its tensors are in."""

    told: Unpickled
    storages: list[Storage] = field(default_factory=list)


class DataFile:
    """A file with many items. A pickle that was seen before is not read again: thousands of tensors have the same."""

    def __init__(self, path: Path) -> None:
        self.path, self._file = path, path.open("rb")
        self._size = self._file.seek(0, 2)
        self._known: dict[bytes, Unpickled] = {}
        self._blocks: dict[int, tuple[int, dict[str, Entry]]] = {}  # offset: where the numbers begin, and the tensors

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def is_archive(self, offset: int) -> bool:
        """Whether an archive begins at a place."""
        try:
            return self._read(offset, 4) == b"PK\x03\x04"
        except OSError:
            return False

    def item(self, offset: int, length: int) -> Item:
        """The item at a place. Raises BadItem."""
        try:
            return self._item(offset, length)
        except OSError as error:
            raise BadItem(f"it cannot be read ({error.strerror or error})", "unreadable") from None

    def _item(self, offset: int, length: int) -> Item:
        try:
            records = read_index(cast(IO[bytes], _Window(self._file, offset, length)), length)
        except BrokenIndex as error:
            raise BadItem(f"{_NOT_WHOLE}: {error}") from None
        if not records or any(record.problem or record.method != STORED for record in records):
            raise BadItem(_NOT_WHOLE)
        checked = any(record.crc32 for record in records)  # torch can be told to write none
        table = {record.name: record for record in records}
        pickle = next((record for record in records if record.name.endswith("/data.pkl")), None)
        if pickle is None:
            raise BadItem("the archive there has no pickle in it")
        told = self._unpickled(offset, pickle, checked=checked)
        folder = pickle.name.removesuffix("data.pkl")
        uses = [(use, table.get(f"{folder}data/{use.key}")) for use in told.storages]
        return Item(told, [self._storage(offset, use, record, checked=checked) for use, record in uses])

    def in_block(self, offset: int, name: str, size: int, dtype: str) -> Storage:
        """Where a tensor lies in a safetensors block that begins at a place. Raises BadItem."""
        if offset not in self._blocks:
            try:
                header = read_block(self._file, offset)
            except OSError as error:
                raise BadItem(f"it cannot be read ({error.strerror or error})", "unreadable") from None
            if header is None:
                raise BadItem("what lies there is neither an archive of torch nor a safetensors block")
            self._blocks[offset] = header.data, {entry.name: entry for entry in header.entries}
        data, entries = self._blocks[offset]
        entry = entries.get(name)
        if entry is None or entry.end - entry.begin != size:
            raise BadItem("the safetensors block there does not hold it in the size that the index says")
        if data + entry.end > self._size:
            raise BadItem(f"the file is cut short: {data + entry.end - self._size:,} bytes of it are missing")
        return Storage(self.path, data + entry.begin, size, dtype, name=name)

    def _unpickled(self, offset: int, record: Record, *, checked: bool) -> Unpickled:
        begin = offset + record.offset
        if record.size > _LONGEST:
            return read_pickle(self._file, start=begin, end=begin + record.size)
        data = self._read(begin, record.size)
        if checked and zlib.crc32(data) != record.crc32:
            raise BadItem("the pickle there does not match its checksum")
        if data not in self._known:
            self._known[data] = read_pickle(io.BytesIO(data), located=False)
        return self._known[data]

    def _storage(self, offset: int, use: StorageUse, record: Record | None, *, checked: bool) -> Storage:
        if record is None:
            raise BadItem(f"the numbers of its storage {use.key} are not there")
        crc = record.crc32 if checked else None
        return Storage(self.path, offset + record.offset, record.size, use.dtype, crc32=crc, name=record.name)

    def _read(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(size)


class _Window:
    """A part of a file as a file of its own, as far as reading an index needs one."""

    def __init__(self, file: IO[bytes], start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0

    def seek(self, offset: int) -> Any:
        self._at = offset

    def read(self, size: int) -> bytes:
        if not 0 <= self._at < self._length:
            return b""
        self._file.seek(self._start + self._at)
        data = self._file.read(min(size, self._length - self._at))
        self._at += len(data)
        return data
