"""Stacks in the run folder: each dump is one Parquet file of the table `stacks`, beside what else was seen from outside."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.probe.arrow import known_schema
from holdfast.probe.pieces import parquet_path, segment_numbers
from holdfast.probe.stacks.frames import Frame, ProcessStacks, Thread
from holdfast.probe.stacks.take import take_stacks
from holdfast.probe.state import read_state
from holdfast.signals.run_folder import RunFolder

_FRESH_SECONDS = 10.0
_KEPT_AT_MOST = 1000
_NO_FRAME = Frame("", "", 0)


def keep_stacks(run: RunFolder, stacks: Sequence[ProcessStacks], *, when: float) -> Path:
    """Keep a dump: it is seen by SQL as rows of `stacks`, the newest one also as `python.backtrace`. May raise OSError."""
    folder = run.path / "host" / "stacks"
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist([row for stack in stacks for row in _rows(stack, when)], schema=known_schema("stacks"))
    spare = folder / f".taken.{os.getpid()}-{threading.get_native_id()}"
    try:
        pq.write_table(table, spare, compression="zstd")
        target = _at_next_number(spare, folder)
    finally:
        spare.unlink(missing_ok=True)
    for old in _files(run)[:-_KEPT_AT_MOST]:
        old.unlink(missing_ok=True)
    return target


def kept_times(run: RunFolder) -> list[float]:
    """When stacks were taken, oldest first."""
    return sorted({when for path in _files(run) for when in (_when(path),) if when is not None})


def kept_stacks(run: RunFolder, *, before: float | None = None) -> tuple[float, list[ProcessStacks]] | None:
    """The newest dump that was kept, or the newest one before a moment."""
    for path in reversed(_files(run)):
        when = _when(path)
        if when is not None and (before is None or when < before):
            return when, stacks_from(pq.ParquetFile(path).read().to_pylist())  # read_table would load half of pyarrow
    return None


def fresh_stacks(run: RunFolder) -> None:
    """Take stacks of a run that lives, for whoever asks now; those of the last seconds are fresh enough."""
    newest = next((when for path in reversed(_files(run)) if (when := _when(path)) is not None), 0.0)
    if time.time() - newest < _FRESH_SECONDS or not read_state(run).alive:
        return
    if stacks := take_stacks(run, native=False):
        with contextlib.suppress(OSError):  # a run of another user can be read, not written
            keep_stacks(run, stacks, when=time.time())


def stacks_from(rows: Sequence[Mapping[str, Any]]) -> list[ProcessStacks]:
    """Processes, threads and frames again, from the rows of one dump."""
    processes: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}  # nodes may use the same process ids
    for row in rows:
        processes.setdefault((row["rank"], row["role"], row["pid"]), []).append(row)
    return [_process(own) for own in processes.values()]


def _rows(stacks: ProcessStacks, when: float) -> Iterator[dict[str, Any]]:
    process = {name: getattr(stacks, name) for name in ("pid", "rank", "role", "worker", "state", "by", "problem")} | {
        "time": when
    }
    if not stacks.threads:
        yield process
    for thread in stacks.threads:
        own = process | {"thread": thread.thread, "thread_name": thread.name, "call": thread.call}
        own |= {"holds_gil": int(thread.holds_gil), "active": int(thread.active)}
        for depth, frame in enumerate(thread.frames or (_NO_FRAME,)):
            seen = None if frame.locals is None else json.dumps(dict(frame.locals), ensure_ascii=False)
            place = {"func": frame.func, "file": frame.file, "lineno": frame.line, "native": int(frame.native)}
            yield own | place | {"depth": depth, "locals": seen}


def _process(rows: Sequence[Mapping[str, Any]]) -> ProcessStacks:
    first = rows[0]
    threads: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["thread"] is not None:
            threads.setdefault(row["thread"], []).append(row)
    return ProcessStacks(
        pid=first["pid"],
        role=first["role"] or "",
        rank=first["rank"],
        threads=tuple(_thread(own) for own in threads.values()),
        problem=first["problem"],
        by=first["by"] or "nobody",
        state=first["state"] or "",
        worker=first["worker"],
    )


def _thread(rows: Sequence[Mapping[str, Any]]) -> Thread:
    first = rows[0]
    frames = tuple(_frame(row) for row in rows if row["func"])
    return Thread(
        pid=first["pid"],
        thread=first["thread"],
        name=first["thread_name"] or "",
        holds_gil=bool(first["holds_gil"]),
        active=bool(first["active"]),
        frames=frames,
        call=first["call"],
    )


def _frame(row: Mapping[str, Any]) -> Frame:
    seen = json.loads(row["locals"]) if row["locals"] else None
    native = bool(row["native"])
    return Frame(
        func=row["func"],
        file=row["file"] or "",
        line=row["lineno"] or 0,
        module=row["file"] if native else None,
        native=native,
        locals=None if seen is None else tuple(seen.items()),
    )


def _at_next_number(spare: Path, folder: Path) -> Path:
    """Give the finished file the next free number; two who take stacks at once get two."""
    number = max(segment_numbers(folder), default=0)
    while True:
        target = parquet_path(folder, number)
        try:
            os.link(spare, target)
        except FileExistsError:
            number += 1
        except OSError:  # a file system without links
            if not target.exists():
                spare.replace(target)
                return target
            number += 1
        else:
            return target


def _files(run: RunFolder) -> list[Path]:
    try:
        return sorted(path for path in (run.path / "host" / "stacks").glob("[0-9]*.parquet"))
    except OSError:
        return []


def _when(path: Path) -> float | None:
    """When the dump in a file was taken; the end of the file says so."""
    try:
        metadata = pq.ParquetFile(path).metadata
        index = metadata.schema.to_arrow_schema().names.index("time")
        return float(metadata.row_group(0).column(index).statistics.max)
    except (OSError, pa.ArrowException, ValueError, AttributeError, IndexError):
        return None
