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

from holdfast.data.columns import Chunk, Part, TableSet
from holdfast.data.formats.sample_boxes import BoxJudge
from holdfast.data.formats.sample_columns import Batch, Columns, columns_of
from holdfast.data.problem import Fault
from holdfast.errors import UsageError

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
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        is_data = hasattr(found, "__getitem__") and not isinstance(found, type)
        return found() if callable(found) and not is_data else found
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
        if not hasattr(one, "__getitem__") and not hasattr(one, "__iter__"):
            raise UsageError(f"{split} is no data set but {type(one).__name__}", fix="the factory must return a data set")
        rows = len(one) if hasattr(one, "__len__") else None
        data.parts.append(Part(split, split, partial(_chunks, split, one, data.faults, data.notes), rows))
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


def _chunks(split: str, data: Any, faults: list[Fault], notes: list[str]) -> Iterator[Chunk]:
    """Samples in chunks; one that raises is a fault and left out."""
    batch, boxes = Batch(), BoxJudge(split)
    for place, sample, columns in _samples(split, data, faults, notes):
        faults += boxes.faults(place, sample)
        if not batch.takes(columns):
            yield batch.joined()
        batch.add(columns)
    if len(batch):
        yield batch.joined()
    notes += (note for note in boxes.notes() if note not in notes)


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
