"""The older form of torch.save: five pickles one after the other, then the storages.

    magic number · version of the form · the machine that wrote it · the object · the keys of the storages
    for each key: how many elements (8 bytes), then the elements

The same form stands inside a pickle that was not written by torch.save: each tensor brings its storage along as bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoints.harmless import ITEM_SIZES
from holdfast.checkpoints.pickled.opcodes import Blob, CutShort, Source
from holdfast.checkpoints.pickled.stack import Findings, Pairs, Stack, StorageUse, Thing

MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001
_FIRST = 32  # bytes of the magic number, in any protocol
_DEEPEST = 2  # a storage inside a pickle inside a pickle


@dataclass(slots=True)
class Legacy:
    """What was understood of it."""

    value: Any = None
    bare: bool = False  # a pickle and nothing else: not torch.save's
    little_endian: bool = True
    problem: str | None = None
    cut: bool = False
    part: str = ""  # where it ends or cannot be followed
    expected: int | None = None  # bytes of a whole file, as far as its storages are known
    end: int = 0
    placed: dict[str, tuple[int, int]] = field(default_factory=dict)  # key: offset and bytes that are there


def read_legacy(source: Source, findings: Findings, machine: type[Stack], *, size: int, depth: int = 0) -> Legacy:
    """Have a machine read the pickles, and find the storages, in a file (or a part of one) that ends at `size`."""
    legacy = Legacy()

    def read(part: str) -> Stack:
        """Read the next pickle, which is that part."""
        pickle = machine(source, findings, depth=depth).run()
        legacy.problem, legacy.cut, legacy.part = pickle.problem, pickle.cut, part
        return pickle

    first = read("its content")
    if type(first.value) is not int or first.value != MAGIC:
        legacy.bare = legacy.problem is None or source.offset > _FIRST
        legacy.part = legacy.part if legacy.bare else "its first bytes"
        legacy.value, legacy.end = first.value, source.offset
        return legacy
    version = read("the version of its form")
    if legacy.problem is None and version.value != VERSION:
        legacy.problem = "unknown format version"
    if legacy.problem is None:
        written_by = read("the description of the machine that wrote it").value
        facts = written_by if isinstance(written_by, Pairs) else ()
        legacy.little_endian = not any(name == "little_endian" and value is False for name, value in facts)
    if legacy.problem is None:
        content = read("its content")
        legacy.value = content.value
        if legacy.problem is None:
            keys = read("the list of its storages")
            if legacy.problem is None and legacy.little_endian:
                _place(source, legacy, keys.value, content.keys, size)
    legacy.end = source.offset
    return legacy


def _place(source: Source, legacy: Legacy, keys: Any, storages: dict[str, StorageUse], size: int) -> None:
    """Where each storage lies. One that is truncated gets the bytes that are there."""
    wanted = [key for key in keys if isinstance(key, str | int)] if isinstance(keys, list) else []
    legacy.expected = source.offset + sum(8 + _bytes_of(storages[str(key)]) for key in wanted if str(key) in storages)
    for key in map(str, wanted):
        storage = storages.get(key)
        if storage is None or key in legacy.placed:
            legacy.problem, legacy.part = "a storage is listed that the file does not have", "the list of its storages"
            return
        try:
            count = int.from_bytes(source.take(8), "little", signed=True)
        except CutShort:
            legacy.problem, legacy.cut, legacy.part = "it ends in the middle", True, "its storages"
            return
        whole = max(count, 0) * ITEM_SIZES[storage.dtype]
        here = source.offset
        legacy.placed[key] = (here, max(0, min(whole, size - here)))
        legacy.part = "its storages"
        if count != storage.count:
            legacy.problem = f"a storage says {count:,} numbers where the content says {storage.count:,}"
            return
        if here + whole > size:
            legacy.problem, legacy.cut = "it ends in the middle", True
            return
        source.skip(whole)


def _bytes_of(storage: StorageUse) -> int:
    return storage.count * ITEM_SIZES[storage.dtype]


def read_inside(machine: Stack, blob: Any) -> Any:
    """A storage that lies inside a pickle, in the form above. Torch would load it; here it is read by the same rules."""
    if not isinstance(blob, Blob) or machine.depth >= _DEEPEST:
        machine.findings.refuse("torch.storage._load_from_bytes")
        return Thing("torch.storage._load_from_bytes")
    at = blob.offset
    source = blob.open() if at is None else machine.source.part(at, at + blob.size)
    end = source.offset + blob.size
    first = len(machine.findings.storages)
    legacy = read_legacy(source, machine.findings, type(machine), size=end, depth=machine.depth + 1)
    if legacy.bare or legacy.problem is not None:
        machine.findings.refuse("torch.storage._load_from_bytes")  # torch would load whatever it is
    for storage in machine.findings.storages[first:]:
        if blob.offset is not None and storage.key in legacy.placed:
            storage.offset, storage.size = legacy.placed[storage.key]
    return legacy.value if legacy.value is not None else Thing("torch.storage._load_from_bytes")
