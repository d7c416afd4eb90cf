"""numpy's numbers and small arrays, as plain values."""

from __future__ import annotations

import re
import struct
from typing import Any

from holdfast.checkpoints.pickled.nodes import Blob, Thing

SMALL = 1024  # elements that are shown; a larger array is told by its kind and shape
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
    (value,) = _values(code, order, _bytes(packed), 1)
    return value


def array_of(packed: Any, dtype: Any, shape: Any, order: Any = "C") -> Thing:
    """An array as protocol 5 writes it, described as the others are."""
    made = Thing("numpy.ndarray")
    made.state = (1, shape, dtype, order == "F", packed)
    return made


def describe(array: Thing) -> tuple[tuple[Any, ...], Any]:
    """Kind and shape of an array, and its values in a row if they are few. Raises ValueError, TypeError or IndexError."""
    _, shape, dtype, _, packed = array.state[-5:]
    count = 1
    for length in shape:
        if not isinstance(length, int) or not 0 <= length < 1 << 40:
            raise ValueError
        count *= length
    if isinstance(packed, list):
        return ("object", tuple(shape)), packed[:SMALL]
    code, order = _code(dtype)
    kind = f"{_KINDS[code[0]]}{8 * int(code[1:])}" if code[0] in _KINDS and code != "b1" else _KINDS.get(code[0], code)
    if count > SMALL:
        return (kind, tuple(shape)), None
    try:
        return (kind, tuple(shape)), list(_values(code, order, _bytes(packed), count))
    except (ValueError, TypeError, struct.error):
        return (kind, tuple(shape)), None


def _code(dtype: Any) -> tuple[str, str]:
    """Kind and byte order of a numpy.dtype: "f8", "<"."""
    if not isinstance(dtype, Thing) or dtype.name != "numpy.dtype" or not dtype.arguments:
        raise TypeError
    found = _TYPE.fullmatch(dtype.arguments[0]) if isinstance(dtype.arguments[0], str) else None
    if found is None or len(found[2]) > 6:
        raise ValueError
    order = dtype.state[1] if isinstance(dtype.state, tuple) and len(dtype.state) > 1 else "<"
    return found[1] + found[2], ">" if order == ">" else "<"


def _bytes(packed: Any) -> bytes:
    if isinstance(packed, Blob) and packed.data is not None:
        return packed.data
    if isinstance(packed, str):
        return packed.encode("latin-1")
    raise TypeError


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
