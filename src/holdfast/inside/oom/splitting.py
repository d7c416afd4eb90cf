"""Cut a batch into parts along its samples, whatever it is made of.

A batch is tensors, arrays and lists inside dicts, tuples, named tuples, dataclasses and mappings such as a tokenizer's output.
Its size is the length that most of its tensors share in their first dimension; where it holds none outside of lists (images
of different sizes with their boxes), the length of its lists of dicts or words. Everything of that length is cut, as views;
the rest goes to every part as it is.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence


class _Lengths(NamedTuple):
    """Lengths that were met: of tensors, of lists of dicts or words, of tensors inside lists."""

    direct: Counter[int]
    listed: Counter[int]
    inner: Counter[int]


def size_of(batch: Any) -> int | None:
    """The number of samples in a batch, or None where it cannot be told (or cannot be cut)."""
    lengths = _Lengths(Counter(), Counter(), Counter())
    try:
        _measure(batch, lengths, outermost=True, inside=False)
    except _Uncuttable:
        return None
    for counted in lengths:
        if counted:
            return counted.most_common(1)[0][0]
    return None


def cut(batch: Any, size: int, parts: int) -> Iterator[tuple[Any, int]]:
    """The parts of a batch of `size` samples and how many each holds: as even as can be, larger ones first (7: 4 + 3)."""
    parts = max(1, min(parts, size))
    start = 0
    for number in range(parts):
        length = size // parts + (number < size % parts)
        yield _narrow(batch, size, start, start + length), length
        start += length


class _Uncuttable(Exception):
    """Something whose samples do not lie along its first dimension."""


def _length(thing: Any) -> int | None:
    """The length of a tensor or array in its first dimension; None for anything else, 0-dimensional ones included."""
    if isinstance(thing, torch.Tensor):
        if thing.is_nested:
            raise _Uncuttable
        return thing.shape[0] if thing.dim() else None
    if isinstance(thing, np.ndarray):
        return int(thing.shape[0]) if thing.ndim else None
    return None


def _fields(thing: Any) -> list[tuple[str, Any]] | None:
    """The named parts of a mapping, dataclass or named tuple."""
    if isinstance(thing, PackedSequence):
        raise _Uncuttable
    if isinstance(thing, Mapping):
        return list(thing.items())
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        return list(zip(thing._fields, thing, strict=True))
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return [(field.name, getattr(thing, field.name)) for field in dataclasses.fields(thing)]
    return None


def _measure(thing: Any, lengths: _Lengths, *, outermost: bool, inside: bool) -> None:
    length = _length(thing)
    if length is not None:
        (lengths.inner if inside else lengths.direct)[length] += 1
    elif (fields := _fields(thing)) is not None:
        for _, value in fields:
            _measure(value, lengths, outermost=False, inside=inside)
    elif isinstance(thing, (list, tuple)) and thing:
        if _are_samples(thing):
            lengths.listed[len(thing)] += 1
            return
        for item in thing:
            _measure(item, lengths, outermost=False, inside=inside or not outermost)


def _narrow(thing: Any, size: int, start: int, stop: int) -> Any:
    length = _length(thing)
    if length is not None:
        return thing[start:stop] if length == size else thing
    fields = _fields(thing)
    if fields is not None:
        return _with_fields(thing, {name: _narrow(value, size, start, stop) for name, value in fields})
    if isinstance(thing, (list, tuple)):
        if len(thing) == size and (_are_samples(thing) or not any(_holds_length(item, size) for item in thing)):
            return thing[start:stop]
        return type(thing)(_narrow(item, size, start, stop) for item in thing)
    return thing


def _are_samples(things: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a list holds one thing per sample: words, or dicts with the same keys."""
    if all(isinstance(item, (str, bytes)) for item in things):
        return True
    return all(isinstance(item, Mapping) and item.keys() == things[0].keys() for item in things)


def _holds_length(thing: Any, size: int) -> bool:
    """Whether there is anything of that length inside."""
    length = _length(thing)
    if length is not None:
        return length == size
    fields = _fields(thing)
    if fields is not None:
        return any(_holds_length(value, size) for _, value in fields)
    return isinstance(thing, (list, tuple)) and (len(thing) == size or any(_holds_length(item, size) for item in thing))


def _with_fields(thing: Any, values: dict[str, Any]) -> Any:
    """The same kind of mapping, named tuple or dataclass with other values; its constructor is not called."""
    if type(thing) is dict:
        return values
    if isinstance(thing, tuple):
        return thing._replace(**values)  # type: ignore[attr-defined]
    if isinstance(thing, Mapping) and not isinstance(thing, MutableMapping):
        return values
    made = copy.copy(thing)
    for name, value in values.items():
        if isinstance(thing, Mapping):
            made[name] = value
        else:
            object.__setattr__(made, name, value)
    return made
