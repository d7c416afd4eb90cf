"""Protocol buffers without their package: the numbered fields of a message, as they stand in its bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
Field = tuple[int, int | float | bytes]


def fields(message: bytes) -> Iterator[Field]:
    """Number and value of each field: an int, a float of eight or four bytes, or bytes. ValueError: this is no message."""
    place, end = 0, len(message)
    while place < end:
        key, place = _varint(message, place)
        kind = key & 7
        if kind == _VARINT:
            number, place = _varint(message, place)
            yield key >> 3, number
        elif kind == _BYTES:
            length, place = _varint(message, place)
            if place + length > end:
                raise ValueError("a field that ends beyond its message")
            yield key >> 3, message[place : place + length]
            place += length
        elif kind in (_EIGHT, _FOUR):
            form, size = ("<d", 8) if kind == _EIGHT else ("<f", 4)
            if place + size > end:
                raise ValueError("a number that ends beyond its message")
            yield key >> 3, struct.unpack_from(form, message, place)[0]
            place += size
        else:
            raise ValueError(f"a field of kind {kind}")


def signed(number: int) -> int:
    """An integer that was folded so that small negative ones are short."""
    return (number >> 1) ^ -(number & 1)


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(message) and shift < 70:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise ValueError("a number without an end")
