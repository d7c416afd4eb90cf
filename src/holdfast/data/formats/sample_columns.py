"""What a sample of a torch data set holds, as columns, and many such samples joined to chunks of a bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from holdfast.data.columns import BYTES, Array, Chunk, Column

Columns = dict[str, Array]
_AT_ONCE = 256
_OF_A_NUMBER = 8  # bytes: all of them are float64 while a column is summed up


def columns_of(sample: Any) -> Columns:
    """The values of a sample by name; what is neither word, number nor array is left out."""
    return dict(_columns("", sample))


def _columns(name: str, value: Any) -> Iterator[tuple[str, Array]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _columns(f"{name}.{key}".strip("."), one)
    elif isinstance(value, (tuple, list)) and name and value and all(isinstance(one, str) for one in value):
        yield name, np.array(value, dtype=object)
    elif isinstance(value, (tuple, list)) and not (value and all(isinstance(one, (int, float)) for one in value)):
        names = ["input", "label"] if len(value) == 2 and not name else [str(place) for place in range(len(value))]
        for key, one in zip(names, value, strict=True):
            yield from _columns(f"{name}.{key}".strip("."), one)
    elif isinstance(value, str):
        yield name or "input", np.array(value, dtype=object)
    else:
        yield from _array(name or "input", value)


def _array(name: str, value: Any) -> Iterator[tuple[str, Array]]:
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):
        return
    if array.dtype.kind == "b":
        array = array.astype(np.int8)
    if array.dtype.kind not in "iuf":
        return
    if array.ndim == 3 and min(array.shape[0], array.shape[2]) <= 16:
        layers = array if array.shape[0] <= 16 else np.moveaxis(array, 2, 0)
        yield from ((f"{name}[{place}]", layer) for place, layer in enumerate(layers))
    else:
        yield name, array


class Batch:
    """Samples with the same columns that wait to be joined: 256 at most, and fewer where they are large."""

    def __init__(self) -> None:
        self._samples: list[Columns] = []
        self._weight = 0

    def __len__(self) -> int:
        return len(self._samples)

    def takes(self, columns: Columns) -> bool:
        """Whether a sample may be added; an empty batch takes any."""
        if not self._samples:
            return True
        fits = len(self._samples) < _AT_ONCE and self._weight + _weight(columns) <= BYTES
        return fits and list(self._samples[-1]) == list(columns)

    def add(self, columns: Columns) -> None:
        """The next sample."""
        self._samples.append(columns)
        self._weight += _weight(columns)

    def joined(self) -> Chunk:
        """All that waited; the batch is empty afterwards, so that the samples are not held beside the chunk."""
        samples, self._samples, self._weight = self._samples, [], 0
        return {name: _column([sample[name] for sample in samples]) for name in samples[0]}


def _weight(columns: Columns) -> int:
    """The bytes that a sample takes while it is judged, about."""
    return sum(
        sum(map(len, value.ravel().tolist())) if value.dtype.kind == "O" else _OF_A_NUMBER * value.size
        for value in columns.values()
    )


def _column(values: list[Array]) -> Column:
    """One column of many samples. Where their types differ, one is taken that holds all of them: floats for 1 and NaN."""
    if len({value.shape for value in values}) > 1:
        return Column(np.concatenate([value.ravel() for value in values]), np.array([value.size for value in values], np.int64))
    rows = np.stack(values) if len(values) > 1 else values[0][np.newaxis]
    return Column(rows if rows.ndim == 1 else rows.reshape(len(values), -1))
