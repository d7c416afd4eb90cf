"""TensorBoard's event files: the scalars of one folder, or of its `train` and `validation` folders, are a run."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from holdfast.errors import LogUnreadable
from holdfast.logs.columns import Column
from holdfast.logs.roles import EPOCH_NAMES
from holdfast.logs.rows import run_of
from holdfast.signals.curves import Curves

MARK = "tfevents"  # in the name of each event file
_LENGTH = struct.Struct("<QI")  # of a record, and its checksum
_CHECKSUM = 4
_LARGEST = 1 << 20  # a record of scalars is small; pictures and graphs are passed over unread
_FLOAT, _DOUBLE = 1, 2
_Point = tuple[str, int, float]  # tag, step, value


def read_events(files: Sequence[Path], *, name: str, below: Path | None = None) -> list[Curves]:
    """The runs in event files: a later file that begins where an earlier one began is a new run, else it continues that run.

    `below`: the folder whose subfolders' names (`train`, `validation`) belong to the names of the series.
    """
    runs: list[_Run] = []
    for file in sorted(files, key=lambda file: (_time_of(file), file.name)):
        prefix = "" if below is None or file.parent == below else f"{file.parent.relative_to(below).as_posix()}/"
        new_run = _Run()
        for tag, step, value in _points(file):
            new_run.add(f"{prefix}{tag}", step, value)
        if new_run.columns:
            again = next((run for run in runs[::-1] if run.continues_in(new_run)), None)
            if again is None:
                runs.append(new_run)
            else:
                again.merge(new_run)
    titles = [name] if len(runs) == 1 else [f"{name} #{number}" for number in range(1, len(runs) + 1)]
    return [run_of(run.with_epochs(), name=title, source="tensorboard") for title, run in zip(titles, runs, strict=True)]


class _Run:
    """The columns of one or several files, and the epoch at each step where it was written down."""

    def __init__(self) -> None:
        self.columns: dict[str, Column] = {}
        self.first: dict[str, int] = {}

    def add(self, tag: str, step: int, value: float) -> None:
        if tag not in self.columns:
            self.columns[tag], self.first[tag] = Column(), step
        self.columns[tag].add(step, value)

    def continues_in(self, other: _Run) -> bool:
        """Whether a later file adds to this run: other series, or the same from further on."""
        both = self.columns.keys() & other.columns.keys()
        return all(other.first[tag] > self.first[tag] for tag in both)

    def merge(self, other: _Run) -> None:
        for tag, column in other.columns.items():
            for step, value in column.points():
                self.add(tag, step, value)

    def with_epochs(self) -> dict[str, Column]:
        """The columns; where an epoch was logged, each point has its epoch."""
        named = [tag for tag in self.columns if tag.lower().rpartition("/")[2] in EPOCH_NAMES]
        if not named or len(named) == len(self.columns):
            return self.columns
        epoch_points = sorted(point for tag in named for point in self.columns[tag].points())
        steps, epochs = np.array([step for step, _ in epoch_points]), np.array([epoch for _, epoch in epoch_points])
        rest = {tag: column for tag, column in self.columns.items() if tag not in named}
        for column in rest.values():
            column.set_epochs(steps, epochs)
        return rest


def _points(file: Path) -> Iterator[_Point]:
    read = _reader()
    for record in _records(file):
        try:
            event = read(record)
        except ValueError:
            return  # what follows a broken record cannot be told apart
        for value in event.summary.value:
            if (number := _scalar(value)) is not None:
                yield value.tag, event.step, number


def _records(file: Path) -> Iterator[bytes]:
    """The records of a file, up to its end or to one that is only half written."""
    try:
        with file.open("rb") as events:
            size = file.stat().st_size
            while len(head := events.read(_LENGTH.size)) == _LENGTH.size:
                length = _LENGTH.unpack(head)[0]
                if events.tell() + length + _CHECKSUM > size:
                    return
                if length > _LARGEST:
                    events.seek(length + _CHECKSUM, 1)
                    continue
                yield _one(events, length)
    except OSError as error:
        raise LogUnreadable(f"{file} cannot be read: {error.strerror}.", fix="check its permissions") from error


def _one(events: BinaryIO, length: int) -> bytes:
    record = events.read(length)
    events.seek(_CHECKSUM, 1)
    return record


def _scalar(value: Any) -> float | None:
    """The number in a value: `simple_value` as TensorBoard 1 and PyTorch write it, or a tensor of one number."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or value.metadata.plugin_data.plugin_name not in ("scalars", ""):
        return None
    tensor = value.tensor
    if math.prod(size.size for size in tensor.tensor_shape.dim) != 1 or tensor.dtype not in (_FLOAT, _DOUBLE):
        return None
    values: Iterable[float] = tensor.float_val or tensor.double_val
    if tensor.tensor_content:
        values = np.frombuffer(tensor.tensor_content, "<f4" if tensor.dtype == _FLOAT else "<f8")
    return next((float(number) for number in values), None)


def _time_of(file: Path) -> int:
    """When the file was begun; it stands in its name."""
    word = file.name.rpartition(f"{MARK}.")[2].split(".")[0]
    return int(word) if word.isdigit() else 0


def _reader() -> Any:
    """What turns a record into an event."""
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto.event_pb2 import Event
    except ImportError as error:
        raise LogUnreadable(
            "TensorBoard's event files are read through the tensorboard package, which is not installed.",
            fix="pip install tensorboard  (or: pip install 'holdfast[logs]')",
        ) from error

    def read(record: bytes) -> Any:
        try:
            return Event.FromString(record)
        except DecodeError as error:
            raise ValueError("no event") from error

    return read
