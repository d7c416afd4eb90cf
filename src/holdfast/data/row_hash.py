"""A 64-bit number for each row of a chunk: equal rows have equal numbers, and others practically never do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.data.columns import Array, Chunk, Column

Numbers = npt.NDArray[Any]  # of 64 bits
_STEP = np.uint64(0x9E3779B97F4A7C15)
_ONE, _TWO = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def row_numbers(chunk: Chunk, names: Iterable[str]) -> Numbers:
    """The numbers of all rows, from these columns."""
    rows = next(iter(chunk.values())).rows
    total = np.zeros(rows, np.uint64)
    for name in names:
        total = _mixed(total * _STEP + _of_column(chunk[name]))
    return total


def _mixed(values: Numbers) -> Numbers:
    """Spread every bit over all 64 (the last steps of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * _ONE
    values = (values ^ (values >> np.uint64(27))) * _TWO
    mixed: Numbers = values ^ (values >> np.uint64(31))
    return mixed


def _of_column(column: Column) -> Numbers:
    values = _as_numbers(column.values)
    if column.counts is not None:
        return _of_jagged(values, column.counts)
    if values.ndim == 1:
        return _mixed(values)
    flat = values.reshape(len(values), -1)
    places = _mixed(np.arange(flat.shape[1], dtype=np.uint64) * _STEP + _STEP)
    sums: Numbers = _mixed(flat ^ places).sum(axis=1, dtype=np.uint64)
    return sums


def _of_jagged(values: Numbers, counts: npt.NDArray[np.int64]) -> Numbers:
    starts = np.cumsum(counts) - counts
    places = (np.arange(len(values)) - np.repeat(starts, counts)).astype(np.uint64)
    mixed = _mixed(values ^ _mixed(places * _STEP + _STEP))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    return _mixed(sums[starts + counts] - sums[starts] + counts.astype(np.uint64))


def _as_numbers(values: Array) -> Numbers:
    if values.dtype.kind == "f":
        return (values.astype(np.float64) + 0.0).view(np.uint64)  # + 0.0: minus zero is zero
    if values.dtype.kind in "iub":
        return values.astype(np.int64 if values.dtype.kind == "i" else np.uint64).view(np.uint64)
    words, places = np.unique(values.astype(str), return_inverse=True)
    numbers = [int.from_bytes(hashlib.blake2b(str(word).encode(), digest_size=8).digest(), "little") for word in words]
    return np.array(numbers, dtype=np.uint64)[places.reshape(values.shape)]
