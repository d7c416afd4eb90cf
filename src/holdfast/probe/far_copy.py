"""Copies of the runs of a server, for verbs that read a run folder: its facts, its journal and its tables, no checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.errors import Unreachable
from holdfast.probe.cluster import There, find
from holdfast.probe.far_run import only
from holdfast.probe.pieces import parquet_path
from holdfast.probe.remote_tables import RemoteRuns
from holdfast.probe.table_files import SEEN_FROM_OUTSIDE
from holdfast.signals.run_folder import RunFolder

_SECONDS = 60.0
_LEFT_THERE = ("stacks",)  # large, and what they say is in the journal


def copies(target: str, folder: Path) -> Iterator[RunFolder]:
    """Each run that the server has, or the one that the target names, as a run folder in `folder`."""
    for there in find([target]).there:
        for name in there.runs:
            if not _is_plain(name):
                raise Unreachable(f"{there.remote} serves a run {name!r}: no run is named so.", fix="ask a server that you trust")
            yield _copy(there, name, folder)


def _is_plain(name: str) -> bool:
    """Whether a name from another machine leads nowhere but into the folder of the copies."""
    return bool(name) and name.isprintable() and not name.startswith(".") and not set(name) & set("/\\")


def _copy(there: There, name: str, folder: Path) -> RunFolder:
    info = there.remote.get("/v1/info", run=name)[name]
    run = RunFolder.join(folder, name)
    run.write_info({**info, "host": info.get("host") or there.host})
    rows = only(there.remote.get("/v1/journal", run=name), name)["rows"]
    run.journal.path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    source = RemoteRuns(there.remote, [name], seconds=_SECONDS)
    for table in source.tables():
        if table not in _LEFT_THERE and table.isidentifier():
            _copy_table(source, table, run)
    if source.problem is not None:
        raise source.problem
    return run


def _copy_table(source: RemoteRuns, name: str, run: RunFolder) -> None:
    """One file for each training of each rank; what was seen from outside belongs to none of them."""
    table = source.open(name)
    for part in table.distant:
        rows = part.load(part.schema.names)
        columns = [column for column in table.schema.names if column in rows.column_names]
        if name in SEEN_FROM_OUTSIDE:
            _write(rows.select(columns), run.path / "host" / name)
            continue
        for rank, number in sorted(set(zip(rows["rank"].to_pylist(), rows["part"].to_pylist(), strict=True))):
            own = rows.filter((pc.field("rank") == rank) & (pc.field("part") == number))
            _write(own.select(columns), run.path / (f"rank-{rank:d}.{number:d}" if number else f"rank-{rank:d}") / name)


def _write(rows: pa.Table, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, parquet_path(folder, 0))
