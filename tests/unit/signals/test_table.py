from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from holdfast.signals import table as table_module
from holdfast.signals.schema import MISSING_BITS, MISSING_INT, Column, Kind, Table
from holdfast.signals.segment import Segment
from holdfast.signals.table import TableWriter

TABLE = Table(
    name="small",
    a_row_is="a row",
    empty_because="no row.",
    columns=(Column("number", Kind.INT, ""), Column("value", Kind.FLOAT, "")),
    first_segment_rows=4,
    segment_rows=32,
)


class Helper:
    """Stands for the helper thread: runs jobs at once, or keeps them while it is `stuck`."""

    def __init__(self) -> None:
        self.stuck = False
        self.waiting: list[Callable[[], None]] = []
        self.troubles: list[str] = []

    def later(self, job: Callable[[], None]) -> None:
        self.waiting.append(job)
        self.go_on()

    def go_on(self) -> None:
        while self.waiting and not self.stuck:
            self.waiting.pop(0)()

    def trouble(self, what: str, error: OSError) -> None:
        self.troubles.append(f"{what}: {type(error).__name__}")


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> Helper:
    monkeypatch.setattr(table_module, "_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(table_module, "_RETRY_SECONDS", -1.0)
    return Helper()


@pytest.fixture
def writer(tmp_path: Path, helper: Helper) -> TableWriter:
    return TableWriter(tmp_path, TABLE, run_later=helper.later, on_trouble=helper.trouble)


def segments(folder: Path) -> list[Segment]:
    return [Segment(path) for path in sorted((folder / TABLE.name).glob("*.seg"))]


def numbers(folder: Path) -> list[int]:
    return [int(number) for segment in segments(folder) for number in segment.column("number")]


def test_rows_go_on_in_the_next_segment(writer: TableWriter, tmp_path: Path) -> None:
    for number in range(200):
        writer.append((number, float(number)))
    assert numbers(tmp_path) == list(range(200))
    assert (writer.rows, writer.dropped) == (200, 0)


def test_segments_grow_to_their_largest_size_and_name_their_first_row(writer: TableWriter, tmp_path: Path) -> None:
    for number in range(100):
        writer.append((number, 0.0))
    found = segments(tmp_path)
    assert [segment.capacity for segment in found][:4] == [4, 16, 32, 32]
    assert [segment.first_row for segment in found][:4] == [0, 4, 20, 52]
    assert [segment.sealed for segment in found] == [True, True, True, True, False, False]  # the last one is the spare


def test_many_rows_at_once_are_split_across_segments(writer: TableWriter, tmp_path: Path) -> None:
    writer.append((-1, 0.0))
    writer.extend([np.arange(150), 2.5])
    assert numbers(tmp_path) == [-1, *range(150)]
    assert all((segment.column("value")[1:] == 2.5).all() for segment in segments(tmp_path))


def test_closing_seals_the_table_and_leaves_no_unused_file(writer: TableWriter, tmp_path: Path) -> None:
    writer.extend([np.arange(14), 0.0])
    assert [segment.rows for segment in segments(tmp_path)] == [4, 10, 0]
    writer.close()
    assert [segment.rows for segment in segments(tmp_path)] == [4, 10]
    assert all(segment.sealed for segment in segments(tmp_path))


def test_rows_after_closing_are_counted_and_cost_no_memory(writer: TableWriter, tmp_path: Path) -> None:
    writer.close()
    for number in range(10):
        writer.append((number, 0.0))
    assert (writer.dropped, writer._held, numbers(tmp_path)) == (10, [], [])


def test_rows_that_come_before_a_slow_disk_is_ready_are_not_lost(tmp_path: Path, helper: Helper) -> None:
    helper.stuck = True
    writer = TableWriter(tmp_path, TABLE, run_later=helper.later, on_trouble=helper.trouble)
    writer.append([0, math.nan])
    writer.extend([np.array([1.0, 2.0]), MISSING_INT])
    helper.stuck = False
    helper.go_on()
    writer.append((3, 0.0))
    assert numbers(tmp_path) == [0, 1, 2, 3]
    assert (writer.rows, writer.dropped) == (4, 0)


def test_a_row_held_for_a_slow_disk_is_written_when_the_table_is_closed(tmp_path: Path, helper: Helper) -> None:
    helper.stuck = True
    writer = TableWriter(tmp_path, TABLE, run_later=helper.later, on_trouble=helper.trouble)
    writer.append((0, 0.0))
    helper.stuck = False
    helper.go_on()
    writer.close()
    assert numbers(tmp_path) == [0]


def test_a_stuck_disk_makes_rows_drop_and_memory_stays_bounded(writer: TableWriter, tmp_path: Path, helper: Helper) -> None:
    helper.stuck = True
    for number in range(1000):
        writer.append((number, 0.0))
    writer.extend([np.arange(1000), 0.0])
    assert len(writer._held) < TABLE.first_segment_rows
    assert writer.rows + len(writer._held) + writer.dropped == 2000
    helper.stuck = False
    helper.go_on()
    writer.append((2000, 0.0))
    assert numbers(tmp_path) == [*range(writer.rows - 1), 2000]
    assert writer.rows + writer.dropped == 2001


def test_a_training_waits_for_a_stuck_disk_once_and_not_at_every_row(
    writer: TableWriter, helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper.stuck = True
    waits: list[float] = []
    monkeypatch.setattr(writer._spare_ready, "wait", waits.append)
    writer.extend([np.arange(500), 0.0])
    for number in range(500):
        writer.append((number, 0.0))
    assert len(waits) == 2  # one for each of the two files it asked for


def test_a_row_of_the_wrong_type_held_for_a_slow_disk_does_not_take_others_with_it(tmp_path: Path, helper: Helper) -> None:
    helper.stuck = True
    writer = TableWriter(tmp_path, TABLE, run_later=helper.later, on_trouble=helper.trouble)
    writer.append(("zero", 0.0))  # type: ignore[arg-type]
    writer.append((1, 0.0))
    helper.stuck = False
    helper.go_on()
    writer.append((2, 0.0))
    assert (numbers(tmp_path), writer.dropped) == ([1, 2], 1)


def test_a_folder_that_comes_back_is_written_to_again(tmp_path: Path, helper: Helper) -> None:
    folder = tmp_path / "gone"
    writer = TableWriter(folder, TABLE, run_later=helper.later, on_trouble=helper.trouble)
    for number in range(10):
        writer.append((number, 0.0))
    assert writer.rows == 0 and "table small: FileNotFoundError" in helper.troubles
    folder.mkdir()
    for number in range(10, 14):
        writer.append((number, 0.0))
    assert numbers(folder)[:3] == [0, 1, 2] and numbers(folder)[-1] == 13
    assert writer.rows + writer.dropped == 14


def test_missing_stays_missing_through_a_row_that_was_held(tmp_path: Path, helper: Helper) -> None:
    helper.stuck = True
    writer = TableWriter(tmp_path, TABLE, run_later=helper.later, on_trouble=helper.trouble)
    writer.extend([np.arange(1), Kind.FLOAT.missing])
    helper.stuck = False
    helper.go_on()
    writer.close()
    assert segments(tmp_path)[0].column("value").view("<u8").tolist() == [MISSING_BITS]
