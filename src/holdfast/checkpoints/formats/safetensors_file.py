"""A safetensors file: eight bytes that say how long its header is, the header in JSON, and the numbers.

Read with no other package, and held to the letter: what the header says must cover the file to the last byte, each byte once.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from holdfast.checkpoints.contents import Contents, Storage, TensorInfo, Trouble
from holdfast.checkpoints.formats.files import BadJson, few, file_info, is_count, parse_json, shown
from holdfast.checkpoints.harmless import ITEM_SIZES

LONGEST_HEADER = 32 << 20  # bytes; the library reads up to 100 MB, which would be 800,000 tensors in one file
MOST_VALUES = 2_000_000  # in the header: some 250,000 tensors, which take 200 MB to list
MOST_TROUBLES = 8
MOST_DIMENSIONS = 64  # torch has no tensor with more

_DTYPES = """
    BOOL:bool U8:uint8 I8:int8 I16:int16 U16:uint16 I32:int32 U32:uint32 I64:int64 U64:uint64 F16:float16 BF16:bfloat16
    F32:float32 F64:float64 C64:complex64 C128:complex128 F8_E4M3:float8_e4m3fn F8_E5M2:float8_e5m2 F8_E8M0:float8_e8m0fnu
    F8_E4M3FNUZ:float8_e4m3fnuz F8_E5M2FNUZ:float8_e5m2fnuz
"""
DTYPES: dict[str, str] = dict(pair.split(":") for pair in _DTYPES.split())  # name in the file: name in torch
PACKED = {"F4": 4, "F4_E2M1": 4, "F6_E2M3": 6, "F6_E3M2": 6}  # bits: their size is known, not how to read them

AGAIN = "copy or download the file again; if this is where it was saved, use an older checkpoint"


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the header: its bytes lie from `begin` to `end`, counted from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(slots=True)
class Header:
    """What the beginning of the file says; `data` is where the numbers begin."""

    data: int
    entries: list[Entry]
    metadata: dict[str, str]


class _Bad(Exception):
    """The header cannot be used: what is wrong with it."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.text)
        self.trouble = trouble


def open_safetensors(path: Path) -> Contents:
    """What a safetensors file holds; whatever is wrong with it is among the troubles. Raises OSError."""
    contents = Contents(path=path, format="safetensors", files=[file_info(path)])
    try:
        header = read_header(path, contents.size)
    except _Bad as bad:
        contents.troubles.append(bad.trouble)
        return contents
    fill(contents, path, header, contents.size)
    return contents


def fill(contents: Contents, path: Path, header: Header, size: int) -> None:
    """Put the tensors of a header into the contents, with what does not fit a file of `size` bytes.

    A tensor that the header describes wrongly is among the troubles only. One that the file is too short for is in both, with
    as many bytes as are there.
    """
    tree: dict[str, Any] = {}
    packed = []
    for entry in header.entries:
        if _size_trouble(entry):
            continue
        dtype = DTYPES.get(entry.dtype) or entry.dtype.lower()
        packed += [entry.name] if entry.dtype in PACKED else []
        info = TensorInfo(entry.name, dtype, entry.shape, len(contents.storages))
        begin, end = (min(header.data + at, size) for at in (entry.begin, entry.end))
        contents.storages.append(Storage(path, begin, end - begin, dtype, name=entry.name))
        contents.tensors.append(info)
        tree[entry.name] = info
    contents.tree = {**tree, "__metadata__": header.metadata} if header.metadata else tree
    contents.versions.update(
        {name: value for name, value in header.metadata.items() if name.endswith("version") and len(value) < 40}
    )
    contents.troubles += _layout_troubles(header, size)
    if packed:
        contents.notes.append(f"values of less than 8 bits are not checked, only counted: {few(packed)}")


def read_header(path: Path, size: int) -> Header:
    """Read the header of a file of `size` bytes. Raises OSError, and `_Bad` for what is not a header."""
    with path.open("rb") as file:
        first = file.read(8)
        if len(first) < 8:
            raise _bad(
                "torn",
                f"It is truncated: it has {size} bytes, and a safetensors file starts with 8 that give the length of its header.",
                AGAIN,
            )
        (length,) = struct.unpack("<Q", first)
        if length > LONGEST_HEADER:
            message = f"It starts with a header length of {length:,} bytes; {LONGEST_HEADER:,} are enough for 250,000 tensors."
            raise _bad("unreadable", message, f"if it is a model, save it in shards; otherwise it was overwritten: {AGAIN}")
        if length + 8 > size:
            message = f"It is truncated within its header: {length + 8 - size:,} bytes of the header and all tensors are missing."
            raise _bad("torn", message, AGAIN)
        text = file.read(length)
    if len(text) < length:
        raise _bad("torn", "It became shorter while it was read.", "look again when nothing writes to it any more")
    return parse_header(text)


def read_block(file: IO[bytes], offset: int) -> Header | None:
    """The header of a block that lies somewhere in a file; None if none does. Raises OSError."""
    file.seek(offset)
    first = file.read(8)
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else LONGEST_HEADER + 1
    try:
        header = parse_header(file.read(length)) if length <= LONGEST_HEADER else None
    except _Bad:
        return None
    if header is not None:
        header.data += offset
    return header


def parse_header(text: bytes) -> Header:
    """The header from its JSON. Raises `_Bad`."""
    if not text.startswith(b"{"):
        raise _bad("unreadable", f"Its header does not start with a brace but with {text[:8]!r}.", AGAIN)
    try:
        raw = parse_json(text, most=MOST_VALUES)
    except BadJson as error:
        raise _bad("unreadable", f"Its header is damaged: {error}.", AGAIN) from None
    if not isinstance(raw, dict):
        raise _bad("unreadable", "Its header is not a JSON object.", AGAIN)
    metadata = raw.pop("__metadata__", None) or {}
    if not (isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())):
        raise _bad("unreadable", "The notes in its header (`__metadata__`) are not text.", AGAIN)
    return Header(8 + len(text), [_entry(name, facts) for name, facts in raw.items()], metadata)


def _entry(name: str, facts: Any) -> Entry:
    try:
        dtype, shape, (begin, end) = facts["dtype"], facts["shape"], facts["data_offsets"]
        whole = isinstance(dtype, str) and isinstance(shape, list) and all(is_count(number) for number in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole or len(facts) != 3:
        message = f"Its header describes the tensor {shown(name)} in an invalid way."
        raise _bad("unreadable", message, AGAIN, where=name)
    return Entry(name, dtype, tuple(shape), begin, end)


def _layout_troubles(header: Header, size: int) -> list[Trouble]:
    """What does not add up between the header and a file of `size` bytes; of a thousand damaged entries the first few."""
    troubles = [trouble for entry in header.entries if (trouble := _size_trouble(entry))]
    end, before = 0, ""
    for entry in sorted(header.entries, key=lambda item: (item.begin, item.end)):
        if entry.begin < end:
            troubles.append(_damaged(f"{shown(entry.name)} begins inside {shown(before)}", entry))
        elif entry.begin > end:
            troubles.append(_damaged(f"{entry.begin - end:,} bytes before {shown(entry.name)} belong to no tensor", entry))
        if entry.end >= end:
            end, before = entry.end, entry.name
    return troubles[:MOST_TROUBLES] + _end_troubles(header, size, header.data + end)


def _end_troubles(header: Header, size: int, wanted: int) -> list[Trouble]:
    if size > wanted:
        message = f"{size - wanted:,} bytes follow its last tensor, where the file should end."
        return [Trouble("unreadable", message, "something else was written into it: " + AGAIN)]
    if size == wanted:
        return []
    short = [entry.name for entry in header.entries if header.data + entry.end > size]
    missing = f"{wanted - size:,} of {wanted:,} bytes are missing"
    message = f"It is truncated: {missing}; {len(short)} of {len(header.entries)} tensors are incomplete: {few(short)}."
    return [Trouble("torn", message, AGAIN, short[0])]


def _size_trouble(entry: Entry) -> Trouble | None:
    bits = 8 * ITEM_SIZES[DTYPES[entry.dtype]] if entry.dtype in DTYPES else PACKED.get(entry.dtype)
    if bits is None:
        message = f"The tensor {shown(entry.name)} has an unknown dtype: {shown(entry.dtype)}."
        return Trouble("unreadable", message, "a newer safetensors may read it; otherwise " + AGAIN, entry.name)
    size, stored = math.prod(entry.shape) * bits, (entry.end - entry.begin) * 8
    if size == stored and size >> 3 < 1 << 62:
        return None
    if len(entry.shape) > MOST_DIMENSIONS or size >> 3 >= 1 << 62:
        return _damaged(f"{shown(entry.name)} has {len(entry.shape)} dimensions and more elements than any tensor", entry)
    kind = f"{shown(entry.name)} of shape {list(entry.shape)} and kind {shown(entry.dtype)}"
    return _damaged(f"{kind} takes {size // 8:,} bytes, not {stored // 8:,}", entry)


def _damaged(message: str, entry: Entry) -> Trouble:
    return Trouble("unreadable", f"Its header is damaged: {message}.", AGAIN, entry.name)


def _bad(state: Any, message: str, fix: str, where: str = "") -> _Bad:
    return _Bad(Trouble(state, message, fix, where))
