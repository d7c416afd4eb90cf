"""numpy's numbers and small arrays, as plain values; of every array how many of its numbers are NaN or Inf."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.checkpoints.numbers import LAYOUTS, Counts, count
from holdfast.checkpoints.pickled.nodes import NotFollowed, Thing
from holdfast.checkpoints.pickled.opcodes import Blob, LongText

SMALL = 1024  # elements that are shown; a larger array is told by its kind and shape
_LONGEST_NUMBER = 256  # bytes
_NONE = Counts()
_FLOATS = {"f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128"}
_CODES = {
    "b1": "?",
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
}
_TYPE = re.compile(r"[<>=|]?([a-zA-Z])(\d*)")
_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}


def number_of(dtype: Any, packed: Any = None) -> Any:
    """A numpy scalar as Python's number or text. Raises ValueError for other kinds."""
    code, order = _code(dtype)
    data = b"".join(_blob(packed).open().chunks()) if _blob(packed).size <= _LONGEST_NUMBER else b""
    (value,) = _values(code, order, data, 1)
    return value


def array_of(packed: Any, dtype: Any, shape: Any, order: Any = "C") -> Thing:
    """An array as protocol 5 writes it, described as the others are."""
    made = Thing("numpy.ndarray")
    made.state = (1, shape, dtype, order == "F", packed)
    return made


@dataclass(frozen=True, slots=True)
class Array:
    """Kind and shape of an array, its values in a row if they are few, and how many of all are not finite."""

    kind: str
    shape: tuple[int, ...]
    values: list[Any] | None = None
    bad: Counts = _NONE


def describe(array: Thing, counted: dict[tuple[int, str], Counts]) -> Array:
    """What an array is; `counted` keeps the counts of bytes that several arrays share. Raises as other makers do."""
    _, shape, dtype, _, packed = array.state[-5:]
    length = 1
    for dimension in shape:
        if not isinstance(dimension, int) or not 0 <= dimension < 1 << 40:
            raise ValueError
        length *= dimension
    if isinstance(packed, list):
        return Array("object", tuple(shape), packed[:SMALL])
    code, order = _code(dtype)
    kind = f"{_KINDS[code[0]]}{8 * int(code[1:])}" if code[0] in _KINDS and code != "b1" else _KINDS.get(code[0], code)
    blob, values, bad = _blob(packed), None, _NONE
    try:
        if code in _FLOATS and (id(packed), code + order) not in counted:
            counted[id(packed), code + order] = _not_finite(blob, code, order)
        bad = counted.get((id(packed), code + order), bad)
        if length <= SMALL and blob.size <= SMALL * _LONGEST_NUMBER:
            values = list(_values(code, order, b"".join(blob.open().chunks()), length))
    except (ValueError, TypeError, struct.error, NotFollowed):
        pass
    return Array(kind, tuple(shape), values, bad)


def _not_finite(blob: Blob, code: str, order: str) -> Counts:
    """Count them, some bytes at a time."""
    layout, total = LAYOUTS[_FLOATS[code]], Counts()
    for chunk in blob.open().chunks():
        numbers = np.frombuffer(chunk[: len(chunk) - len(chunk) % layout.size], np.uint8)
        if order == ">":
            numbers = numbers.view(f"u{layout.size}").byteswap().view(np.uint8)
        total = total.plus(count(numbers, layout))
    return total


def _code(dtype: Any) -> tuple[str, str]:
    """Kind and byte order of a numpy.dtype: "f8", "<"."""
    if not isinstance(dtype, Thing) or dtype.name != "numpy.dtype" or not dtype.arguments:
        raise TypeError
    found = _TYPE.fullmatch(dtype.arguments[0]) if isinstance(dtype.arguments[0], str) else None
    if found is None or len(found[2]) > 6:
        raise ValueError
    order = dtype.state[1] if isinstance(dtype.state, tuple) and len(dtype.state) > 1 else "<"
    return found[1] + found[2], ">" if order == ">" else "<"


def _blob(packed: Any) -> Blob:
    if isinstance(packed, str):  # Python 2's
        data = packed.encode("latin-1")
        return Blob(data, len(data))
    if isinstance(packed, LongText):
        return packed.latin1()
    if not isinstance(packed, Blob):
        raise TypeError
    return packed


def _values(code: str, order: str, data: bytes, count: int) -> tuple[Any, ...]:
    if code in ("c8", "c16"):
        parts = struct.unpack(f"{order}{2 * count}{'f' if code == 'c8' else 'd'}", data)
        return tuple(map(complex, parts[::2], parts[1::2]))
    if code[0] in "US":
        width = int(code[1:]) * (4 if code[0] == "U" else 1)
        if width * count != len(data):
            raise ValueError
        encoding = f"utf-32-{'be' if order == '>' else 'le'}" if code[0] == "U" else "latin-1"
        return tuple(data[at * width : (at + 1) * width].decode(encoding).rstrip("\0") for at in range(count))
    return struct.unpack(f"{order}{count}{_CODES[code]}", data)
