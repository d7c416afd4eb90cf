"""MLflow's stores: the SQLite database `mlflow.db`, and the folder `mlruns/<experiment>/<run>/metrics`. MLflow is not needed."""

from __future__ import annotations

import math
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from holdfast.errors import LogUnreadable
from holdfast.logs.columns import Column
from holdfast.logs.parse_number import parse_number
from holdfast.logs.rows import run_of
from holdfast.signals.curves import Curves

_POINTS = """
    SELECT run_uuid, key, step, value, is_nan FROM metrics
    WHERE run_uuid IN (SELECT run_uuid FROM runs WHERE lifecycle_stage != 'deleted')
    ORDER BY run_uuid, key, step, timestamp
"""
_RUNS = """
    SELECT runs.run_uuid, runs.name, experiments.name FROM runs
    LEFT JOIN experiments USING (experiment_id) ORDER BY runs.start_time
"""
_LARGEST = sys.float_info.max  # how MLflow writes infinity into a column that cannot hold it
_Columns = dict[str, Column]


def is_database(path: Path) -> bool:
    """Whether a file is an SQLite database."""
    try:
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def read_database(path: Path, *, name: str) -> list[Curves]:
    """The runs of a database, oldest first. It is opened for reading only; one that is locked is read as it lies there."""
    try:
        runs = _read(path, "mode=ro")
    except sqlite3.OperationalError as error:
        if "no such" in str(error):
            raise LogUnreadable(f"{path} is a database, but not MLflow's.", fix="name a log file") from error
        runs = _read_unlocked(path)
    return [
        run_of(_counted(columns), name=f"{name} · {title}", source="mlflow")
        for title, columns in runs
        if any(len(column) > 1 for column in columns.values())
    ]


def _read_unlocked(path: Path) -> list[tuple[str, _Columns]]:
    """A database that is locked, or lies in a folder in which no lock can be set."""
    try:
        return _read(path, "immutable=1")
    except sqlite3.OperationalError as error:
        raise LogUnreadable(f"{path} cannot be read: {error}.", fix="copy it, and diagnose the copy") from error


def _read(path: Path, mode: str) -> list[tuple[str, _Columns]]:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True, timeout=1.0)) as database:
            runs: dict[str, _Columns] = {}
            for run, key, step, value, is_nan in database.execute(_POINTS):
                column = runs.setdefault(run, {}).setdefault(key, Column())
                column.add(int(step or 0), math.nan if is_nan else _with_infinity(float(value)))
            names = {run: f"{experiment or '?'}/{title or run}" for run, title, experiment in database.execute(_RUNS)}
    except sqlite3.OperationalError:
        raise
    except (sqlite3.DatabaseError, UnicodeError, TypeError) as error:
        raise LogUnreadable(f"{path} is a damaged database: {error}.", fix="copy it again, or restore a backup") from error
    return [(title, runs[run]) for run, title in names.items() if run in runs]


def is_run_folder(folder: Path) -> bool:
    """Whether a folder is a run of the file store."""
    return (folder / "meta.yaml").is_file() and (folder / "metrics").is_dir()


def read_store(folder: Path, *, name: str) -> list[Curves]:
    """The runs below a folder (`mlruns`, an experiment, or a run)."""
    runs = []
    for run in _run_folders(folder):
        columns = {key: column for key, column in _of_files(run / "metrics") if len(column)}
        if any(len(column) > 1 for column in columns.values()):
            title = name if run == folder else f"{name} · {_name_of(run)}"
            runs.append(run_of(_counted(columns), name=title, source="mlflow"))
    return runs


def _run_folders(folder: Path) -> Iterator[Path]:
    if is_run_folder(folder):
        yield folder
        return
    folders = [metrics.parent for pattern in ("*/metrics", "*/*/metrics") for metrics in folder.glob(pattern)]
    yield from sorted((run for run in folders if is_run_folder(run)), key=lambda run: (_start_time(run), run.name))


def _start_time(run: Path) -> int:
    match = re.search(r"^start_time: (\d+)", (run / "meta.yaml").read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    return int(match[1]) if match is not None else 0


def _name_of(run: Path) -> str:
    name_file = run / "tags" / "mlflow.runName"
    return name_file.read_text(encoding="utf-8", errors="replace").strip() if name_file.is_file() else run.name


def _of_files(metrics: Path) -> Iterator[tuple[str, Column]]:
    """Each file is a metric; a line of it is time, value, step."""
    for file in sorted(path for path in metrics.rglob("*") if path.is_file()):
        column = Column()
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                fields = line.split()
                value = parse_number(fields[1]) if len(fields) >= 2 and line.endswith("\n") else None
                if value is not None:
                    column.add(int(fields[2]) if len(fields) > 2 and fields[2].isdigit() else 0, value)
        yield file.relative_to(metrics).as_posix(), column


def _counted(columns: _Columns) -> _Columns:
    """A metric that was logged without its step has 0 at all of its points: these are counted instead."""
    return {name: column.counted() if len(column) > 1 and column.stands_still() else column for name, column in columns.items()}


def _with_infinity(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) >= _LARGEST else value
