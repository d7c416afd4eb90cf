"""Any torch.utils.data.Dataset, given as `package.module:factory`: the user's own code is imported and called.

The factory returns a data set, or a dict of them by split, or a tuple (train, val, test). What a sample holds becomes columns:
arrays by channel, numbers as they are; the last number of a tuple is taken for the label.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.data.checks.boxes import box_faults
from holdfast.data.columns import Array, Chunk, Column, Part, TableSet
from holdfast.data.problem import Fault
from holdfast.data.samples import Entry, Label, Thing
from holdfast.errors import UsageError

_NAMED = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
_AT_ONCE = 256
_MOST = 1_000_000
_FAILURES = 1000


def is_factory(path: str) -> bool:
    """Whether a word names a factory, not a file."""
    return bool(_NAMED.match(path))


def made_by(path: str) -> Any:
    """Import the factory and call it."""
    module, _, name = path.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found() if callable(found) and not hasattr(found, "__getitem__") else found
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        said = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{path} cannot be made: {said}", fix="it must be a function without arguments that returns a data set"
        ) from None


def read(path: str) -> TableSet:
    """What the factory makes, as columns."""
    return as_columns(made_by(path))


def as_columns(made: Any) -> TableSet:
    """Data sets as columns; each is gone through anew whenever they are read."""
    data = TableSet("dataset", Path.cwd(), None, [])
    for split, loaded in by_split(made):
        one = _inside(loaded)
        data.parts.append(
            Part(split, split, partial(_chunks, split, one, data.faults), len(one) if hasattr(one, "__len__") else None)
        )
    return data


def by_split(made: Any) -> Iterator[tuple[str, Any]]:
    """The data sets, or loaders, of a factory by their splits."""
    if isinstance(made, dict):
        return iter((str(split), one) for split, one in made.items())
    if isinstance(made, (tuple, list)):
        return iter(zip(("train", "val", "test"), made, strict=False))
    return iter([("all", made)])


def _inside(made: Any) -> Any:
    """The data set of a loader."""
    is_loader = hasattr(made, "dataset") and hasattr(made, "collate_fn") and not hasattr(made, "__getitem__")
    return made.dataset if is_loader else made


def _chunks(split: str, data: Any, faults: list[Fault]) -> Iterator[Chunk]:
    """Samples in chunks; one that raises is a fault and left out."""
    batch: list[dict[str, Array]] = []
    for place, sample in _samples(split, data, faults):
        columns = dict(_columns("", sample))
        faults += _boxes(split, place, sample)
        if batch and list(batch[-1]) != list(columns):
            yield _joined(batch)
            batch = []
        batch.append(columns)
        if len(batch) == _AT_ONCE:
            yield _joined(batch)
            batch = []
    if batch:
        yield _joined(batch)


def _samples(split: str, data: Any, faults: list[Fault]) -> Iterator[tuple[int, Any]]:
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        yield from zip(range(_MOST), data, strict=False)
        return
    for place in range(len(data)):
        try:
            yield place, data[place]
        except Exception as error:  # noqa: BLE001 - as above
            faults.append(Fault("sample-unreadable", split, place, f"{type(error).__name__}: {error}"[:200]))
            if len(faults) > _FAILURES:
                return


def _columns(name: str, value: Any) -> Iterator[tuple[str, Array]]:
    """The values of a sample by name; what is neither number nor array is left out."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _columns(f"{name}.{key}".strip("."), one)
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


def _joined(batch: list[dict[str, Array]]) -> Chunk:
    return {name: _column([sample[name] for sample in batch]) for name in batch[0]}


def _column(values: list[Array]) -> Column:
    if all(value.ndim == 0 for value in values):
        return Column(np.array([value.item() for value in values], dtype=values[0].dtype))
    if len({value.shape for value in values}) == 1:
        return Column(np.stack([value.ravel() for value in values]))
    return Column(np.concatenate([value.ravel() for value in values]), np.array([value.size for value in values], np.int64))


def _boxes(split: str, place: int, sample: Any) -> Iterator[Fault]:
    """Detection samples, as torchvision has them: (image, {"boxes": left, top, right, bottom, "labels": …})."""
    target = sample[1] if isinstance(sample, (tuple, list)) and len(sample) == 2 else None
    if not isinstance(target, dict) or "boxes" not in target:
        return
    shape: tuple[int, ...] = tuple(getattr(sample[0], "shape", ()))
    boxes = np.asarray(target["boxes"], dtype=np.float64).reshape(-1, 4)
    kinds = np.asarray(target.get("labels", np.zeros(len(boxes)))).ravel().tolist()
    if len(shape) != 3 or len(kinds) != len(boxes):
        return
    height, width = (shape[1], shape[2]) if shape[0] <= 16 else (shape[0], shape[1])
    things = [
        Thing(int(kind), (box[0], box[1], box[2], box[3]), None, 0) for kind, box in zip(kinds, boxes.tolist(), strict=True)
    ]
    yield from box_faults(Entry(split, f"{split}[{place}]"), Label(things), (int(width), int(height)), None)
