"""Containers, bytes, times, paths and numbers of Python and numpy, as plain values.

Each function takes what the name is given in the stream, and raises TypeError, ValueError or LookupError for anything else.
"""

from __future__ import annotations

import datetime
import math
import pathlib
from collections.abc import Callable
from typing import Any

from holdfast.checkpoints.pickled.arrays import array_of, number_of
from holdfast.checkpoints.pickled.nodes import Bag, Pairs
from holdfast.checkpoints.pickled.opcodes import Blob


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


def _decimal(text: Any) -> float:
    """A decimal or a fraction, as text: "1.5", "1/3"."""
    if not isinstance(text, str) or len(text) > 60:
        raise TypeError
    over, _, under = text.partition("/")
    divisor = float(under or 1)
    number = float(over) / divisor if divisor else math.nan
    if not math.isfinite(number):
        raise ValueError
    return number


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
    "decimal.Decimal": _decimal,
    "fractions.Fraction": _decimal,
    **{
        f"pathlib{part}.{name}": _POSIX for part in ("", "._local") for name in ("Path", "PurePath", "PosixPath", "PurePosixPath")
    },
    **{f"pathlib{part}.{name}": _WINDOWS for part in ("", "._local") for name in ("WindowsPath", "PureWindowsPath")},
    **{f"numpy.{core}.multiarray.scalar": number_of for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": array_of for core in ("core", "_core")},
}
