"""Any torch.utils.data.Dataset, given as `package.module:factory`: the user's own code is imported and called.

The factory returns a data set, or a dict of them by split, or a tuple (train, val, test). What a sample holds becomes columns:
arrays by channel, numbers as they are; the last number of a tuple is taken for the label.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.data.checks.boxes import box_faults
from holdfast.data.columns import BYTES, Array, Chunk, Column, Part, TableSet
from holdfast.data.problem import Fault
from holdfast.data.samples import ClassKey, Entry, Label, Thing
from holdfast.errors import UsageError
from holdfast.units import count

# Boxes of detection samples, as torchvision has them: (image, {"boxes": left, top, right, bottom, "labels": …}).

_LONGEST_NAME = 40
_NOT_READ = (TypeError, ValueError, RuntimeError, OverflowError)


class OddTarget(ValueError):
    """Boxes that are not understood; its words say why."""


def target_of(sample: Any) -> dict[str, Any] | None:
    """The target of a detection sample; None for any other."""
    target = sample[1] if isinstance(sample, (tuple, list)) and len(sample) == 2 else None
    return target if isinstance(target, dict) and "boxes" in target else None


def things_of(target: dict[str, Any]) -> list[Thing]:
    """The boxes of a target with their labels. Where there are no labels, all are of class 0."""
    boxes, labels = _boxes(target["boxes"]), target.get("labels")
    try:
        kinds = [0] * len(boxes) if labels is None else _as_array(labels).ravel().tolist()
    except _NOT_READ:
        raise OddTarget("its labels are not one for each box") from None
    if len(kinds) != len(boxes):
        raise OddTarget(f"it has {count(len(kinds), 'label')} for {count(len(boxes), 'box', 'boxes')}")
    pairs = zip(kinds, boxes.tolist(), strict=True)
    return [Thing(_class(kind), (left, top, right, bottom)) for kind, (left, top, right, bottom) in pairs]


def _as_array(value: Any) -> Array:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _boxes(value: Any) -> Array:
    """Four numbers for each box."""
    try:
        boxes = _as_array(value if value is not None else "").astype(np.float64)  # None would become NaN
    except _NOT_READ:
        raise OddTarget("its boxes cannot be read as numbers") from None
    if not boxes.size or boxes.shape == (4,):
        return boxes.reshape(-1, 4)
    if boxes.ndim != 2:
        raise OddTarget(f"its boxes have the shape {boxes.shape}, not (boxes, 4)")
    if boxes.shape[1] != 4:
        raise OddTarget(f"its boxes have {count(boxes.shape[1], 'number')} each, not four")
    return boxes


def _class(kind: Any) -> ClassKey:
    """A whole number as a number, anything else (words, NaN) by its name."""
    if isinstance(kind, (int, float)) and kind == kind and abs(kind) != float("inf"):
        return int(kind)
    return str(kind)[:_LONGEST_NAME]


# What a sample of a torch data set holds, as columns, and many such samples joined to chunks of a bounded size.

Columns = dict[str, Array]
_AT_ONCE = 256
_OF_A_NUMBER = 8  # bytes: all of them are float64 while a column is summed up


def named_values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a sample holds, by name: words, numbers, and arrays in their own shape; all else is left out."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from named_values(f"{name}.{key}".strip("."), item)
    elif isinstance(value, (tuple, list)) and name and value and all(isinstance(item, str) for item in value):
        yield name, np.array(value, dtype=object)
    elif isinstance(value, (tuple, list)) and not (value and all(isinstance(item, (int, float)) for item in value)):
        names = ["input", "label"] if len(value) == 2 and not name else [str(place) for place in range(len(value))]
        for key, item in zip(names, value, strict=True):
            yield from named_values(f"{name}.{key}".strip("."), item)
    elif isinstance(value, str):
        yield name or "input", value
    else:
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            array = _as_array(value)
            if array.dtype.kind in "iufb":
                yield name or "input", array if array.ndim else array.item()


def columns_of(sample: Any) -> Columns:
    """The values of a sample as columns; an array of pictures or series has one for each channel."""
    columns: Columns = {}
    for name, value in named_values("", sample):
        array = np.array(value, dtype=object) if isinstance(value, str) else np.asarray(value)
        array = array.astype(np.int8) if array.dtype.kind == "b" else array
        if array.ndim == 3 and min(array.shape[0], array.shape[2]) <= 16:
            layers = array if array.shape[0] <= 16 else np.moveaxis(array, 2, 0)
            columns |= {f"{name}[{place}]": layer for place, layer in enumerate(layers)}
        else:
            columns[name] = array
    return columns


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


_NAMED = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
_MOST = 1_000_000
_FAILURES = 1000
_OVER = object()  # what stands behind the last sample of a stream


def is_factory(path: str) -> bool:
    """Whether a word names a factory, not a file."""
    return bool(_NAMED.match(path))


def made_by(path: str) -> Any:
    """Import the factory and call it."""
    module, _, name = path.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        factory: Any = importlib.import_module(module)
        for part in name.split("."):
            factory = getattr(factory, part)
        is_data = hasattr(factory, "__getitem__") and not isinstance(factory, type)
        return factory() if callable(factory) and not is_data else factory
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{path} cannot be made: {reason}", fix="it must be a function without arguments that returns a data set"
        ) from None


def read(path: str) -> TableSet:
    """What the factory makes, as columns."""
    return as_columns(made_by(path))


def as_columns(made: Any) -> TableSet:
    """Data sets as columns; each is gone through anew whenever they are read."""
    data = TableSet("dataset", Path.cwd(), [])
    for split, loaded in by_split(made):
        is_loader = hasattr(loaded, "dataset") and hasattr(loaded, "collate_fn") and not hasattr(loaded, "__getitem__")
        dataset = loaded.dataset if is_loader else loaded
        if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
            raise UsageError(f"{split} is not a data set but {type(dataset).__name__}", fix="the factory must return a data set")
        rows = len(dataset) if hasattr(dataset, "__len__") else None
        data.parts.append(Part(split, split, partial(_chunks, split, dataset, data.faults, data.notes), rows))
    return data


def by_split(made: Any) -> Iterator[tuple[str, Any]]:
    """The data sets, or loaders, of a factory by their splits."""
    if isinstance(made, dict):
        return iter((str(split), dataset) for split, dataset in made.items())
    if isinstance(made, (tuple, list)):
        return iter(zip(("train", "val", "test"), made, strict=False))
    return iter([("all", made)])


def _chunks(split: str, data: Any, faults: list[Fault], notes: list[str]) -> Iterator[Chunk]:
    """Samples with the same columns in chunks: 256 at most, fewer where they are large. One that raises is a fault."""
    waiting: list[Columns] = []
    weight = odd = 0
    first = ""
    for place, sample, columns in _samples(split, data, faults, notes):
        name, own = f"{split}[{place}]", _weight(columns)
        try:
            faults += _faults_of_boxes(Entry(split, name), sample)
        except OddTarget as error:
            odd, first = odd + 1, first or f"{name}: {error}"
        if waiting and (len(waiting) == _AT_ONCE or weight + own > BYTES or list(waiting[-1]) != list(columns)):
            yield _joined(waiting)
            weight = 0
        waiting.append(columns)
        weight += own
    if waiting:
        yield _joined(waiting)
    note = f"the boxes of {count(odd, 'sample')} were not judged; first {first}"
    notes += [note] if odd and note not in notes else []


def _joined(waiting: list[Columns]) -> Chunk:
    """All that waited; nothing waits afterwards, so that the samples are not held beside the chunk."""
    samples = list(waiting)
    waiting.clear()
    return {name: _column([sample[name] for sample in samples]) for name in samples[0]}


def _faults_of_boxes(entry: Entry, sample: Any) -> list[Fault]:
    """What is wrong with the boxes of a sample, if it has any; OddTarget where they are not understood."""
    target = target_of(sample)
    shape: tuple[int, ...] = tuple(getattr(sample[0], "shape", ())) if target is not None else ()
    if target is None or len(shape) != 3:
        return []
    height, width = (shape[1], shape[2]) if shape[0] <= 16 else (shape[0], shape[1])
    return list(box_faults(entry, Label(things_of(target)), (int(width), int(height)), None))


def _samples(split: str, data: Any, faults: list[Fault], notes: list[str]) -> Iterator[tuple[int, Any, Columns]]:
    """Each sample with its place and columns. Those are made here, as some pictures are read only when they are looked at."""
    has_places, failures = hasattr(data, "__getitem__") and hasattr(data, "__len__"), 0
    stream = None if has_places else iter(data)
    for place in range(len(data) if has_places else _MOST):
        try:
            sample = data[place] if stream is None else next(stream, _OVER)
            if sample is _OVER:
                return
            columns = columns_of(sample)
        except Exception as error:  # noqa: BLE001 - as above
            faults.append(Fault("sample-unreadable", split, place, f"{type(error).__name__}: {error}"[:200]))
            failures += 1
            if failures > _FAILURES:
                notes.append(f"{split} was not read on after sample {place:,}: {failures:,} samples raised an error")
                return
            continue
        yield place, sample, columns
