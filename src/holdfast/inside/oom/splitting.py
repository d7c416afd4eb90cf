"""Split a batch of any structure into parts along its samples.

A batch is tensors, arrays and lists inside dicts, tuples, named tuples, dataclasses and mappings such as a tokenizer's output.
Its size is the first dimension that most of its tensors share; if all tensors are inside lists (images of different sizes with
their boxes), the length of its lists of dicts or strings. Everything of that length is split into views; every part gets the
rest whole.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence


def size_of(batch: Any) -> int | None:
    """The number of samples in a batch, or None if it is unknown or cannot be split."""
    try:
        counts = Counter(_lengths(batch, outermost=True))
    except _CannotSplit:
        return None
    return min(counts, key=lambda found: (found[0], -counts[found]))[1] if counts else None


def cut(batch: Any, size: int, parts: int) -> Iterator[tuple[Any, int]]:
    """Parts of a batch with their sizes, as even as possible, larger ones first (7: 4 + 3)."""
    parts = max(1, min(parts, size))
    start = 0
    for index in range(parts):
        length = size // parts + (index < size % parts)
        yield _narrow(batch, size, start, start + length), length
        start += length


class _CannotSplit(Exception):
    """The batch holds a type whose samples are not along the first dimension."""


def _length(value: Any) -> int | None:
    """The first dimension of a tensor or array; None for scalars and anything else."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            raise _CannotSplit
        return value.shape[0] if value.dim() else None
    if isinstance(value, np.ndarray):
        return int(value.shape[0]) if value.ndim else None
    return None


def _fields(value: Any) -> list[tuple[str, Any]] | None:
    """The fields of a mapping, dataclass or named tuple."""
    if isinstance(value, PackedSequence):
        raise _CannotSplit
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def _lengths(value: Any, *, outermost: bool = False, inside: bool = False) -> Iterator[tuple[int, int]]:
    """The lengths in a batch, each with its rank: 0 of a tensor, 1 of a list of dicts or strings, 2 of a tensor inside a list."""
    length = _length(value)
    if length is not None:
        yield 2 if inside else 0, length
    elif (fields := _fields(value)) is not None:
        for _, field in fields:
            yield from _lengths(field, inside=inside)
    elif isinstance(value, (list, tuple)) and value:
        if _are_samples(value):
            yield 1, len(value)
            return
        for item in value:
            yield from _lengths(item, inside=inside or not outermost)


def _narrow(value: Any, size: int, start: int, stop: int) -> Any:
    length = _length(value)
    if length is not None:
        return value[start:stop] if length == size else value
    fields = _fields(value)
    if fields is not None:
        return _with_fields(value, {name: _narrow(field, size, start, stop) for name, field in fields})
    if isinstance(value, (list, tuple)):
        fields_inside = any(length == size for item in value for _, length in _lengths(item))
        if len(value) == size and (_are_samples(value) or not fields_inside):
            return value[start:stop]
        return type(value)(_narrow(item, size, start, stop) for item in value)
    return value


def _are_samples(items: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a list holds one item per sample: strings, or dicts with the same keys."""
    if all(isinstance(item, (str, bytes)) for item in items):
        return True
    return all(isinstance(item, Mapping) and item.keys() == items[0].keys() for item in items)


def _with_fields(original: Any, values: dict[str, Any]) -> Any:
    """A mapping, named tuple or dataclass of the same type with new values; its constructor is not called."""
    if type(original) is dict:
        return values
    if isinstance(original, tuple):
        return original._replace(**values)  # type: ignore[attr-defined]
    if isinstance(original, Mapping) and not isinstance(original, MutableMapping):
        return values
    new = copy.copy(original)
    for name, value in values.items():
        if isinstance(original, Mapping):
            new[name] = value
        else:
            object.__setattr__(new, name, value)
    return new
