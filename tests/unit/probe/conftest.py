from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.signals import recorder as recorder_module
from holdfast.signals import table as table_module
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES


@pytest.fixture(autouse=True)
def own_registry(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Live runs of this machine are not those of the test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))


@pytest.fixture
def tiny_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 8, then 32 rows, so that a short table has several; each is waited for, so that no row is dropped."""
    small = {name: replace(table, first_segment_rows=8, segment_rows=32) for name, table in TABLES.items()}
    monkeypatch.setattr(recorder_module, "TABLES", small)
    monkeypatch.setattr(table_module, "_WAIT_SECONDS", 600.0)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Callable[..., Recorder]]:
    """Start recorders in one run; those that a test leaves open are closed after it."""
    made: list[Recorder] = []

    def start(rank: int = 0, **info: Any) -> Recorder:
        run = made[0].run if made else RunFolder.create(tmp_path / "runs", "run", **info)
        made.append(Recorder.start(run, rank))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def row() -> Callable[..., list[Any]]:
    """A row of a table with some values given and the others missing."""

    def make(table: str, **values: Any) -> list[Any]:
        unknown = set(values) - set(TABLES[table].column_names)
        assert not unknown, unknown
        return [values.get(column.name, column.kind.missing) for column in TABLES[table].columns]

    return make
