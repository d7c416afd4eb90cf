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
_EXACT = 2.0**53  # whole numbers below are the same as float64


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
    """The bits of each value as float64: a column of whole numbers is read as one of floats where a chunk has gaps."""
    if values.dtype.kind not in "iufb":
        return _of_words(values)
    floats = values.astype(np.float64) + 0.0  # + 0.0: minus zero is zero
    floats[np.isnan(floats)] = np.nan  # there are many kinds of NaN
    bits: Numbers = floats.view(np.uint64)
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        large = np.abs(floats) >= _EXACT
        bits[large] = values[large].astype(np.int64 if values.dtype.kind == "i" else np.uint64).view(np.uint64)
    return bits


def _of_words(values: Array) -> Numbers:
    """Each different word is hashed once."""
    words = words_of(values)
    numbers = {word: _of_word(word) for word in set(words)}
    return np.fromiter((numbers[word] for word in words), np.uint64, len(words)).reshape(values.shape)


def _of_word(word: str | bytes) -> int:
    content = word if isinstance(word, bytes) else word.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def words_of(values: Array) -> list[str | bytes]:
    """The values as words, each as long as it is. In an array of NumPy's words each would take as much room as the longest."""
    plain = values if values.dtype.kind in "OUS" else values.astype(str)
    return [value if isinstance(value, (str, bytes)) else str(value) for value in plain.ravel().tolist()]
