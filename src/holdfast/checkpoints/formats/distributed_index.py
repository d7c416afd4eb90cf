"""The index of a torch.distributed.checkpoint folder (`.metadata`): which tensors there are, in which pieces, and where they lie.

It is a pickle of torch's own classes, read here by their names. None of them is made.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.checkpoints.contents import State, Storage
from holdfast.checkpoints.formats.files import file_info, is_count
from holdfast.checkpoints.formats.safetensors_file import Entry as TensorEntry
from holdfast.checkpoints.formats.safetensors_file import read_block
from holdfast.checkpoints.formats.zip_index import STORED, BrokenIndex, Record
from holdfast.checkpoints.formats.zip_index import read_index as read_zip_index
from holdfast.checkpoints.names import ITEM_SIZES
from holdfast.checkpoints.pickled.machine import Findings, Machine
from holdfast.checkpoints.pickled.opcodes import Source
from holdfast.checkpoints.pickled.stack import Named, Pairs, StorageUse, Thing
from holdfast.checkpoints.pickles import Unpickled, read_pickle

_OWN = "torch.distributed.checkpoint."
_DEEPEST = 60  # parts of a path


@dataclass(frozen=True, slots=True)
class Place:
    """Where a piece lies: a stretch of bytes in one file of the folder."""

    file: str
    offset: int
    length: int
    changed: bool = False  # compressed or encrypted by an extension


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor: where it begins in the whole, and how large it is."""

    begin: tuple[int, ...]
    shape: tuple[int, ...]
    place: Place | None


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in its pieces; or, with no `dtype`, an object with a place of its own."""

    name: str
    path: tuple[str | int, ...]  # where it stood in the state that was saved
    dtype: str | None
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(slots=True)
class Index:
    """What the index says."""

    entries: list[Entry] = field(default_factory=list)
    version: str | None = None
    refused: list[str] = field(default_factory=list)
    needs_code: list[str] = field(default_factory=list)
    cut: bool = False
    problem: str | None = None


def read_index(path: Path) -> Index:
    """Read an index. Raises OSError."""
    size = file_info(path).size
    findings = Findings()
    findings.spent = -min(size, 1 << 30)  # thousands of ranks make a long index
    with path.open("rb") as file:
        machine = Machine(Source(file, 0, size), findings).run()
    index = Index(cut=machine.cut, problem=machine.problem, refused=list(findings.refused))
    index.needs_code = [name for name in findings.needs_code if not name.startswith(_OWN) and name not in findings.refused]
    fields = _fields(machine.value)
    if index.problem is None and "state_dict_metadata" not in fields:
        index.problem = "it is the index of something else"
    if index.problem is None:
        index.entries = list(_entries(fields))
        version = fields.get("version")
        index.version = version if isinstance(version, str) and len(version) < 40 else None
    return index


def _entries(fields: dict[str, Any]) -> Iterator[Entry]:
    places = {(name, begin): place for name, begin, place in _places(fields.get("storage_data"))}
    paths = {name: path for name, path in _pairs(fields.get("planner_data")) if isinstance(name, str)}
    for name, facts in _pairs(fields["state_dict_metadata"]):
        if isinstance(name, str):
            yield _entry(name, _path(name, paths.get(name)), _fields(facts), places)


def _entry(name: str, path: tuple[str | int, ...], facts: dict[str, Any], places: dict[tuple[str, Any], Place]) -> Entry:
    shape = _lengths(facts.get("size"))
    if shape is None or "chunks" not in facts:
        return Entry(name, path, None, (), (Piece((), (), places.get((name, None))),))
    pieces = []
    for chunk in facts["chunks"] if isinstance(facts["chunks"], list) else []:
        part = _fields(chunk)
        begin, size = _lengths(part.get("offsets")), _lengths(part.get("sizes"))
        if begin is not None and size is not None:
            pieces.append(Piece(begin, size, places.get((name, begin))))
    return Entry(name, path, _dtype(facts.get("properties")), shape, tuple(pieces))


def _places(storage_data: Any) -> Iterator[tuple[str, tuple[int, ...] | None, Place]]:
    for key, value in _pairs(storage_data):
        index, info = _fields(key), _fields(value)
        name, begin = index.get("fqn"), _lengths(index.get("offset"))
        file, place = info.get("relative_path"), _lengths([info.get("offset"), info.get("length")])
        if isinstance(name, str) and isinstance(file, str) and place is not None:
            yield name, begin, Place(file, place[0], place[1], changed=bool(info.get("transform_descriptors")))


def _path(name: str, path: Any) -> tuple[str | int, ...]:
    whole = isinstance(path, tuple) and 0 < len(path) < _DEEPEST and all(type(part) in (str, int) for part in path)
    return path if whole else (name,)


def _dtype(properties: Any) -> str:
    """The kind of a tensor's numbers; torch writes its properties as a row of values."""
    state = properties.state if isinstance(properties, Thing) else None
    values = [value for _, value in state] if isinstance(state, Pairs) else state
    for value in values if isinstance(values, list | tuple) else ():
        if isinstance(value, Named) and value.name in ITEM_SIZES:
            return value.name
    return "unknown"


def _fields(thing: Any) -> dict[str, Any]:
    """The attributes of an object."""
    state = thing.state if isinstance(thing, Thing) else thing
    return {name: value for name, value in _pairs(state) if isinstance(name, str)}


def _pairs(value: Any) -> Pairs:
    return value if isinstance(value, Pairs) else Pairs()


def _lengths(value: Any) -> tuple[int, ...] | None:
    """A torch.Size, which is read as a row of numbers."""
    if isinstance(value, Thing):
        value = value.arguments[0] if isinstance(value.arguments, tuple) and len(value.arguments) == 1 else None
    return tuple(value) if isinstance(value, list | tuple) and all(map(is_count, value)) else None


_LONGEST = 64 << 20  # bytes of a pickle that is kept, to know it again
_NOT_WHOLE = "the content there is not a complete torch archive"


class BadItem(Exception):
    """At this place lies something else than the index says; the text says what."""

    def __init__(self, message: str, state: State = "torn") -> None:
        super().__init__(message)
        self.state = state


@dataclass(slots=True)
class Item:
    """What lies at a place: a tree, and the storages that its tensors are in."""

    unpickled: Unpickled
    storages: list[Storage] = field(default_factory=list)


class DataFile:
    """A file with many items. A pickle that was seen before is not read again: thousands of tensors have the same."""

    def __init__(self, path: Path) -> None:
        self.path, self._file = path, path.open("rb")
        self._size = self._file.seek(0, 2)
        self._known: dict[bytes, Unpickled] = {}
        self._blocks: dict[int, tuple[int, dict[str, TensorEntry]]] = {}  # offset: where the numbers begin, and the tensors

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
            records = read_zip_index(self._file, length, offset)
        except BrokenIndex as error:
            raise BadItem(f"{_NOT_WHOLE}: {error}") from None
        if not records or any(record.problem or record.method != STORED for record in records):
            raise BadItem(_NOT_WHOLE)
        checked = any(record.crc32 for record in records)  # torch can be told to write none
        table = {record.name: record for record in records}
        pickle = next((record for record in records if record.name.endswith("/data.pkl")), None)
        if pickle is None:
            raise BadItem("the archive there has no pickle in it")
        unpickled = self._unpickled(offset, pickle, checked=checked)
        folder = pickle.name.removesuffix("data.pkl")
        uses = [(use, table.get(f"{folder}data/{use.key}")) for use in unpickled.storages]
        return Item(unpickled, [self._storage(offset, use, record, checked=checked) for use, record in uses])

    def in_block(self, offset: int, name: str, size: int, dtype: str) -> Storage:
        """Where a tensor lies in a safetensors block that begins at a place. Raises BadItem."""
        if offset not in self._blocks:
            try:
                header = read_block(self._file, offset)
            except OSError as error:
                raise BadItem(f"it cannot be read ({error.strerror or error})", "unreadable") from None
            if header is None:
                raise BadItem("the content there is neither a torch archive nor a safetensors block")
            self._blocks[offset] = header.data, {entry.name: entry for entry in header.entries}
        data, entries = self._blocks[offset]
        entry = entries.get(name)
        if entry is None or entry.end - entry.begin != size:
            raise BadItem("the safetensors block there does not hold it in the size that the index says")
        if data + entry.end > self._size:
            raise BadItem(f"the file is truncated: {data + entry.end - self._size:,} bytes of it are missing")
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
            raise BadItem(f"the data of its storage {use.key} is missing")
        crc = record.crc32 if checked else None
        return Storage(self.path, offset + record.offset, record.size, use.dtype, crc32=crc, name=record.name)

    def _read(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(size)
