"""Numbers as bytes: which bits of each kind say NaN or infinite, found fast and with numpy alone.

A sum that is finite proves that all of its numbers are; one that is not is looked at again, bit by bit, as a sum of large numbers
overflows by itself. Nothing here starts threads, so that it may run beside a training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class Counts(NamedTuple):
    """How many numbers are NaN, +Inf and -Inf."""

    nan: int = 0
    positive: int = 0
    negative: int = 0

    @property
    def inf(self) -> int:
        """Both infinities."""
        return self.positive + self.negative

    @property
    def all(self) -> int:
        """Everything that is not finite."""
        return sum(self)

    def plus(self, other: Counts) -> Counts:
        """Both together."""
        return Counts(*(own + more for own, more in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the exponent of a number lies. All of its bits set: NaN if the fraction has any, else infinite."""

    size: int  # bytes of one number; a complex one is two of them
    exponent: int
    fraction: int
    one: int  # the bits of 1.0
    only: int | None = None  # the one pattern that is NaN, in kinds that have no infinity

    @property
    def sign(self) -> int:
        """The bit of the sign."""
        return 1 << (8 * self.size - 1)


_SINGLE = Layout(4, 0x7F80_0000, 0x007F_FFFF, 0x3F80_0000)
_DOUBLE = Layout(8, 0x7FF0_0000_0000_0000, 0x000F_FFFF_FFFF_FFFF, 0x3FF0_0000_0000_0000)
_HALF = Layout(2, 0x7C00, 0x03FF, 0x3C00)
LAYOUTS = {
    "float32": _SINGLE,
    "float64": _DOUBLE,
    "float16": _HALF,
    "bfloat16": Layout(2, 0x7F80, 0x007F, 0x3F80),
    "complex32": _HALF,
    "complex64": _SINGLE,
    "complex128": _DOUBLE,
    "float8_e5m2": Layout(1, 0x7C, 0x03, 0x3C),
    "float8_e4m3fn": Layout(1, 0x7F, 0x7F, 0x38),  # no infinity; all ones is NaN, of either sign
    "float8_e4m3fnuz": Layout(1, 0, 0, 0x40, only=0x80),
    "float8_e5m2fnuz": Layout(1, 0, 0, 0x40, only=0x80),
    "float8_e8m0fnu": Layout(1, 0, 0, 0x7F, only=0xFF),
}
_UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_SIGNED: dict[int, Any] = {1: np.int8, 2: np.int16}
_FLOATS: dict[int, Any] = {4: np.float32, 8: np.float64}


def is_finite(memory: Bytes, layout: Layout) -> bool:
    """Whether all numbers in some memory are finite; a little more than as fast as the memory can be read."""
    if layout.only is not None:
        return not (memory == layout.only).any()
    if layout.size in _FLOATS:
        if math.isfinite(np.einsum("i->", memory.view(_FLOATS[layout.size]))):  # the fastest sum that numpy has
            return True
    elif _largest_is_below(memory, layout):
        return True
    return not count(memory, layout).all


def _largest_is_below(memory: Bytes, layout: Layout) -> bool:
    """Whether no exponent has all its bits set: the largest signed number tells of +Inf and NaN, the largest unsigned of -Inf."""
    if int(memory.view(_SIGNED[layout.size]).max(initial=0)) >= layout.exponent:
        return False
    return int(memory.view(_UNSIGNED[layout.size]).max(initial=0)) < layout.sign | layout.exponent


def count(memory: Bytes, layout: Layout) -> Counts:
    """Count exactly, whatever the numbers are."""
    return count_bits(bits_of(memory, layout), layout)


def count_bits(bits: npt.NDArray[Any], layout: Layout) -> Counts:
    """As `count`, of numbers that were picked out of their memory."""
    if layout.only is not None:
        return Counts(nan=int(np.count_nonzero(bits == layout.only)))
    bad = bits[(bits & bits.dtype.type(layout.exponent)) == layout.exponent]
    nan = np.count_nonzero(bad & bad.dtype.type(layout.fraction))
    negative = np.count_nonzero(bad == layout.sign | layout.exponent) if nan < bad.size else 0
    return Counts(int(nan), int(bad.size - nan - negative), int(negative))


def bits_of(memory: Bytes, layout: Layout) -> npt.NDArray[Any]:
    """The numbers as their bits."""
    bits: npt.NDArray[Any] = memory.view(_UNSIGNED[layout.size])
    return bits


def only_zero_one_or_minus_infinity(bits: npt.NDArray[Any], layout: Layout) -> bool:
    """Whether numbers are those of a mask: 0 and 1, and -Inf where nothing may be looked at."""
    plain = bits & bits.dtype.type(layout.sign - 1)  # without the sign
    return bool(np.all((plain == 0) | (bits == layout.one) | (bits == layout.sign | layout.exponent)))
