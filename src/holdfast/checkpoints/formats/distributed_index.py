"""The index of a torch.distributed.checkpoint folder (`.metadata`): which tensors there are, in which pieces, and where they lie.

It is a pickle of torch's own classes, read here by their names. None of them is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.checkpoints.formats.files import file_info
from holdfast.checkpoints.names import ITEM_SIZES
from holdfast.checkpoints.pickled.machine import Findings, Machine
from holdfast.checkpoints.pickled.nodes import Named, Pairs, Thing
from holdfast.checkpoints.pickled.opcodes import Source

_OWN = "torch.distributed.checkpoint."
_LARGEST = 1 << 62
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
    found = Findings()
    found.spent = -min(size, 1 << 30)  # thousands of ranks make a long index
    with path.open("rb") as file:
        machine = Machine(Source(file, 0, size), found).run()
    index = Index(cut=machine.cut, problem=machine.problem, refused=list(found.refused))
    index.needs_code = [name for name in found.needs_code if not name.startswith(_OWN) and name not in found.refused]
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
    return tuple(value) if isinstance(value, list | tuple) and all(map(_is_count, value)) else None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST
