"""Sealed segments become Parquet beside them, at any moment without losing or doubling a row.

The file is written under another name, brought to the disk, renamed, and only then is the segment removed. A reader
that finds both takes the Parquet file. A disk that is full leaves the segment as it was.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import DamagedSegment
from holdfast.probe.arrow import read_names, segment_schema, segment_table
from holdfast.probe.pieces import half_made, num_segments, parquet_path, segment_numbers, table_names
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.segment import SUFFIX, Segment


@dataclass(slots=True)
class Compacted:
    """What was done: how many segments, how many rows, and what could not be done."""

    segments: int = 0
    rows: int = 0
    warnings: list[str] = field(default_factory=list)


def compact_run(run: RunFolder, *, final: bool = False, at_least: int = 1) -> Compacted:
    """Compact all recordings of a run, and what was seen from outside.

    `final`: all processes that trained are dead. What is seen from outside has another writer, often the caller, so
    of that only sealed segments are taken. Tables with fewer than `at_least` segments are not looked at.
    """
    done = Compacted()
    for recording in run.recordings():
        compact(recording.path, final=final, done=done, at_least=at_least)
    return compact(run.path / "host", done=done)


def compact(folder: Path, *, final: bool = False, done: Compacted | None = None, at_least: int = 1) -> Compacted:
    """Compact the sealed segments of one recording.

    `final` takes the unsealed ones too, and the empty ones that were made ready and never used. It must only be given
    when the writer is dead: rows that a living one publishes afterwards would be lost.
    """
    done = Compacted() if done is None else done
    for name in table_names(folder):
        if num_segments(folder / name) < at_least:
            continue
        _sweep(folder / name)
        for number in segment_numbers(folder / name):
            path = folder / name / f"{number:06d}{SUFFIX}"
            with contextlib.suppress(FileNotFoundError):
                _compact_one(folder, path, parquet_path(folder / name, number), final, done)
    return done


def _compact_one(folder: Path, path: Path, target: Path, final: bool, done: Compacted) -> None:
    """Turn one segment around; raises FileNotFoundError if someone else did."""
    if target.exists():
        path.unlink()  # an earlier attempt ended between the renaming and this
        return
    try:
        segment = Segment(path)
    except DamagedSegment as error:
        _damaged(path, error, final, done)
        return
    if not (segment.sealed or final):
        return
    if segment.rows == 0:
        path.unlink()
        return
    try:
        _write(segment, read_names(folder), target)
    except (OSError, pa.ArrowException) as error:
        done.warnings.append(f"{path} stays as it is: {error}")
        return
    path.unlink(missing_ok=True)
    done.segments, done.rows = done.segments + 1, done.rows + segment.rows


def _damaged(path: Path, error: DamagedSegment, final: bool, done: Compacted) -> None:
    """A half-made file of a dead writer holds no rows and goes; anything else is left for a person to look at."""
    if not half_made(path):
        done.warnings.append(error.problem)
    elif final:
        path.unlink()


def _write(segment: Segment, names: pa.Array, target: Path) -> None:
    """Write the Parquet file completely, or not at all."""
    table = segment_table(segment, segment_schema(segment), names)
    spare = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_native_id()}")
    try:
        with spare.open("wb") as file:
            pq.write_table(table, file, compression="zstd", **_encodings(table.schema))
            file.flush()
            os.fsync(file.fileno())
        spare.replace(target)
    except BaseException:
        spare.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _encodings(schema: pa.Schema) -> dict[str, Any]:
    """Bytes of floats apart, integers as differences: a third smaller than the usual dictionaries, and faster both ways."""
    plain = {pa.float64(): "BYTE_STREAM_SPLIT", pa.int64(): "DELTA_BINARY_PACKED"}
    return {
        "use_dictionary": [column.name for column in schema if column.type not in plain],
        "column_encoding": {column.name: plain[column.type] for column in schema if column.type in plain},
    }


def _sync_folder(folder: Path) -> None:
    """Bring the new name to the disk before the old file goes; a file system that cannot is trusted."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove what compactors that were killed have left half written."""
    for spare in folder.glob(".[0-9]*.parquet.[0-9]*-[0-9]*"):
        pid = int(spare.suffix[1:].partition("-")[0])
        if not psutil.pid_exists(pid):
            spare.unlink(missing_ok=True)
