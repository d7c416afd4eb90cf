"""Containers, bytes, times, paths and numbers of Python and numpy, as plain values.

Each function takes what the name is given in the stream, and raises TypeError, ValueError or LookupError for anything else.
"""

from __future__ import annotations

import datetime
import pathlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.checkpoints.numbers import LAYOUTS, Counts, count
from holdfast.checkpoints.pickled.opcodes import Blob, LongText, NotFollowed
from holdfast.checkpoints.pickled.stack import Bag, Pairs, Thing

SMALL = 1024  # elements that are shown; a larger array is told by its kind and shape
_LONGEST_NUMBER = 256  # bytes
_NONE = Counts()
_FLOATS = {"f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128"}
_PLAIN = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", *_FLOATS)
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
            values = _values(code, order, b"".join(blob.open().chunks()), length)
    except (ValueError, TypeError, NotFollowed):
        pass
    return Array(kind, tuple(shape), values, bad)


def _not_finite(blob: Blob, code: str, order: str) -> Counts:
    """Count them, some bytes at a time."""
    layout, total = LAYOUTS[_FLOATS[code]], Counts()
    for chunk in blob.open().chunks():
        raw = np.frombuffer(chunk[: len(chunk) - len(chunk) % layout.size], np.uint8)
        if order == ">":
            raw = raw.view(f"u{layout.size}").byteswap().view(np.uint8)
        total = total.plus(count(raw, layout))
    return total


def _code(dtype: Any) -> tuple[str, str]:
    """Kind and byte order of a numpy.dtype: "f8", "<"."""
    if not isinstance(dtype, Thing) or dtype.name != "numpy.dtype" or not dtype.arguments:
        raise TypeError
    match = _TYPE.fullmatch(dtype.arguments[0]) if isinstance(dtype.arguments[0], str) else None
    if match is None or len(match[2]) > 6:
        raise ValueError
    order = dtype.state[1] if isinstance(dtype.state, tuple) and len(dtype.state) > 1 else "<"
    return match[1] + match[2], ">" if order == ">" else "<"


def _blob(packed: Any) -> Blob:
    if isinstance(packed, str):  # Python 2's
        data = packed.encode("latin-1")
        return Blob(data, len(data))
    if isinstance(packed, LongText):
        return packed.latin1()
    if not isinstance(packed, Blob):
        raise TypeError
    return packed


def _values(code: str, order: str, data: bytes, count: int) -> list[Any]:
    if code not in _PLAIN and code[0] not in "US":
        raise ValueError
    array = np.frombuffer(data, np.dtype(order + code))
    if array.size != count:
        raise ValueError
    values: list[Any] = array.tolist()
    return [value.decode("latin-1") for value in values] if code[0] == "S" else values


def table_of(items: Any = ()) -> Pairs:
    """A dict of a dict, or of a row of pairs."""
    if isinstance(items, Pairs):
        return Pairs(items)
    return Pairs((pair[0], pair[1]) for pair in row(items) if isinstance(pair, list | tuple) and len(pair) == 2)


def row(items: Any = (), *_rest: Any) -> list[Any]:
    """A list of a list or tuple."""
    if not isinstance(items, list | tuple) or isinstance(items, Pairs):
        raise TypeError
    return list(items)


def fixed_row(items: Any = ()) -> tuple[Any, ...]:
    """A tuple of a list or tuple."""
    return tuple(row(items))


def text_of(text: Any = "") -> str:
    """A text, if it is one."""
    if not isinstance(text, str):
        raise TypeError
    return text


def _complex(real: Any = 0.0, imaginary: Any = 0.0) -> complex:
    if not isinstance(real, int | float) or not isinstance(imaginary, int | float):
        raise TypeError
    return complex(real, imaginary)


def _device(kind: Any, index: Any = None) -> str:
    if not isinstance(kind, str) or not isinstance(index, int | None):
        raise TypeError
    return kind if index is None else f"{kind}:{index}"


def _packed(value: Any) -> bytes:
    if isinstance(value, Blob) and value.data is not None:
        return value.data
    return text_of(value).encode("latin-1")


def _moment(packed: Any, zone: Any = None) -> str:
    data = _packed(packed)
    clock = (data[3], data[4], data[5], data[6], int.from_bytes(data[7:10], "big"))
    when = datetime.datetime((data[0] << 8) | data[1], data[2] & 127, *clock)
    return when.isoformat() + ("" if zone is None else _zone(zone))


def _zone(zone: Any) -> str:
    days, seconds = zone.arguments[0].arguments[:2]
    minutes = (86400 * int(days) + int(seconds)) // 60
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


def _day(packed: Any) -> str:
    data = _packed(packed)
    return datetime.date((data[0] << 8) | data[1], data[2], data[3]).isoformat()


def _path(kind: type[pathlib.PurePath]) -> Callable[..., str]:
    def value(*parts: Any) -> str:
        if not all(isinstance(part, str) for part in parts) or len(parts) > 1000:
            raise TypeError
        return str(kind(*parts))

    return value


_POSIX, _WINDOWS = _path(pathlib.PurePosixPath), _path(pathlib.PureWindowsPath)

VALUES: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": table_of,
    "collections.Counter": table_of,
    "collections.defaultdict": lambda _factory=None, items=(): table_of(items),
    "collections.deque": row,
    "builtins.dict": table_of,
    "builtins.list": row,
    "builtins.tuple": fixed_row,
    "builtins.set": lambda items=(): Bag(row(items)),
    "builtins.frozenset": lambda items=(): Bag(row(items)),
    "builtins.complex": _complex,
    "builtins.str": text_of,
    "torch.device": _device,
    "datetime.datetime": _moment,
    "datetime.date": _day,
    **{
        f"pathlib{part}.{name}": _POSIX for part in ("", "._local") for name in ("Path", "PurePath", "PosixPath", "PurePosixPath")
    },
    **{f"pathlib{part}.{name}": _WINDOWS for part in ("", "._local") for name in ("WindowsPath", "PureWindowsPath")},
    **{f"numpy.{core}.multiarray.scalar": number_of for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": array_of for core in ("core", "_core")},
}
