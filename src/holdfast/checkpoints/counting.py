"""Count NaN and Inf in single tensors, once a scan has told in which bytes there are some."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.checkpoints.contents import Storage, TensorInfo
from holdfast.checkpoints.names import ITEM_SIZES
from holdfast.checkpoints.numbers import LAYOUTS, Bytes, Counts, Layout, bits_of, count_bits, only_zero_one_or_minus_infinity

_AT_ONCE = 4 << 20  # bytes
Range = tuple[int, int]


def span_of(tensor: TensorInfo) -> Range:
    """From where to where in its storage a tensor lies, in bytes."""
    size = ITEM_SIZES.get(tensor.dtype, 1)
    if not tensor.count:
        return 0, 0
    last = tensor.count - 1
    if tensor.stride is not None:
        last = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride, strict=True))
    return tensor.offset * size, (tensor.offset + last + 1) * size


def count_in(tensor: TensorInfo, storage: Storage, ranges: Sequence[Range], *, swapped: bool = False) -> Counts:
    """How many numbers of a tensor are not finite; only the given bytes of its storage are looked at."""
    layout, total = LAYOUTS[tensor.dtype], Counts()
    begin, end = span_of(tensor)
    picked = None if is_dense(tensor) else _Picked(tensor)
    for low, high in ranges:
        for at, bits in _bits(storage, max(low, begin), min(high, end), layout, swapped=swapped):
            own = bits if picked is None else picked.of(bits, at, layout)
            total = total.plus(count_bits(own, layout))
    return total if picked is None else Counts(*(number * picked.times for number in total))


def is_mask(tensor: TensorInfo, storage: Storage, *, swapped: bool = False) -> bool:
    """Whether a tensor holds nothing but 0, 1 and -Inf."""
    layout = LAYOUTS[tensor.dtype]
    picked = None if is_dense(tensor) else _Picked(tensor)
    for at, bits in _bits(storage, *span_of(tensor), layout, swapped=swapped):
        if not only_zero_one_or_minus_infinity(bits if picked is None else picked.of(bits, at, layout, every=True), layout):
            return False
    return True


def is_dense(tensor: TensorInfo) -> bool:
    """Whether a tensor fills the bytes that it lies in, each once, in whatever order."""
    if tensor.stride is None:
        return True
    expected = 1
    for step, length in sorted((step, length) for step, length in zip(tensor.stride, tensor.shape, strict=True) if length != 1):
        if step != expected:
            return False
        expected *= length
    return True


class _Picked:
    """Which numbers of a storage belong to a tensor that is a part of a larger one: a slice, or one number many times."""

    def __init__(self, tensor: TensorInfo) -> None:
        pairs = [(step, length) for step, length in zip(tensor.stride or (), tensor.shape, strict=True) if length != 1]
        self._steps = sorted(((step, length) for step, length in pairs if step), reverse=True)
        self._first, self._size = tensor.offset, ITEM_SIZES[tensor.dtype]
        self.times = math.prod(length for step, length in pairs if not step)

    def of(self, bits: npt.NDArray[Any], at: int, layout: Layout, *, every: bool = False) -> npt.NDArray[Any]:
        """Those that belong to it, of numbers that begin at a byte of the storage; without `every` those that matter only."""
        exponent = bits.dtype.type(layout.exponent)
        suspect = np.arange(bits.size) if every or layout.only is not None else np.flatnonzero((bits & exponent) == exponent)
        rest = (at + suspect * layout.size) // self._size - self._first
        mine = rest >= 0
        for step, length in self._steps:
            index = np.minimum(rest // step, length - 1)
            rest = rest - index * step
        chosen: npt.NDArray[Any] = bits[suspect[mine & (rest == 0)]]
        return chosen


def _bits(storage: Storage, begin: int, end: int, layout: Layout, *, swapped: bool) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """The numbers between two bytes of a storage, a few megabytes at a time; what cannot be read any more is left out."""
    end = min(end, storage.size)
    begin += -begin % layout.size if begin % layout.size else 0
    if begin >= end:
        return
    try:
        file = os.open(storage.file, os.O_RDONLY)
    except OSError:
        return
    try:
        for at in range(begin, end, _AT_ONCE):
            memory = _read(file, storage.offset + at, min(_AT_ONCE, end - at))
            bits = bits_of(memory[: memory.size - memory.size % layout.size], layout)
            yield at, bits.byteswap() if swapped else bits
    finally:
        os.close(file)


def _read(file: int, offset: int, size: int) -> Bytes:
    try:
        return np.frombuffer(os.pread(file, size, offset), np.uint8)
    except OSError:
        return np.empty(0, np.uint8)
