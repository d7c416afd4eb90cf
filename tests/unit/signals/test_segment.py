from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest

from holdfast.errors import DamagedSegment
from holdfast.signals.schema import MISSING, MISSING_BITS, MISSING_INT, Column, Kind, Table
from holdfast.signals.segment import HEADER_BYTES, Segment, SegmentWriter, segment_path

TABLE = Table(
    name="small",
    a_row_is="a row",
    empty_because="no row.",
    columns=(Column("number", Kind.INT, ""), Column("value", Kind.FLOAT, ""), Column("name", Kind.STRING, "")),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return segment_path(tmp_path, 0)


@pytest.fixture
def writer(path: Path) -> SegmentWriter:
    return SegmentWriter(path, TABLE, capacity=8, first_row=100)


def test_a_published_row_is_read_back_while_the_writer_lives(writer: SegmentWriter, path: Path) -> None:
    writer.append((1, 0.5, 7))
    read = Segment(path)
    assert (read.rows, read.first_row, read.capacity) == (1, 100, 8)
    assert [read.column(name)[0] for name in ("number", "value", "name")] == [1, 0.5, 7]
    assert not read.sealed and not read.torn_tail


def test_a_reader_does_not_see_rows_published_after_it_opened_the_segment(writer: SegmentWriter, path: Path) -> None:
    writer.append((1, 0.5, 7))
    read = Segment(path)
    writer.append((2, 0.5, 7))
    assert read.rows == len(read.column("number")) == 1
    assert Segment(path).rows == 2


def test_missing_and_nan_stay_apart_on_disk(writer: SegmentWriter, path: Path) -> None:
    for value in (MISSING, math.nan, math.inf, 1.0):
        writer.append((MISSING_INT, value, 0))
    read = Segment(path)
    bits = read.column("value").view("<u8")
    assert (bits == MISSING_BITS).tolist() == [True, False, False, False]
    assert np.isnan(read.column("value")).tolist() == [True, True, False, False]
    assert (read.column("number") == MISSING_INT).all()


def test_missing_survives_being_written_in_bulk(writer: SegmentWriter, path: Path) -> None:
    ready = [np.arange(3), np.array([MISSING, math.nan, 2.0]), np.full(3, MISSING_INT)]
    writer.extend(ready, 0, 3)
    assert (Segment(path).column("value").view("<u8") == MISSING_BITS).tolist() == [True, False, False]


def test_a_value_of_the_wrong_type_publishes_nothing_and_spoils_nothing(writer: SegmentWriter, path: Path) -> None:
    writer.append((1, 1.0, 1))
    with pytest.raises(TypeError):
        writer.append((2, "two", 2))  # type: ignore[arg-type]
    assert Segment(path).rows == 1
    assert Segment(path).torn_tail
    writer.append((3, 3.0, 3))
    assert Segment(path).column("number").tolist() == [1, 3]
    assert not Segment(path).torn_tail


def test_a_bulk_write_of_unequal_columns_publishes_nothing(writer: SegmentWriter, path: Path) -> None:
    with pytest.raises(ValueError, match="broadcast"):
        writer.extend([np.arange(3), np.ones(2), np.arange(3)], 0, 3)
    assert Segment(path).rows == 0


def test_a_sealed_segment_says_so_and_keeps_its_rows(writer: SegmentWriter, path: Path) -> None:
    writer.append((1, 0.5, 7))
    writer.seal()
    writer.seal()
    assert Segment(path).sealed and Segment(path).rows == 1


def test_an_existing_segment_is_never_written_over(writer: SegmentWriter, path: Path) -> None:
    writer.append((1, 0.5, 7))
    with pytest.raises(FileExistsError):
        SegmentWriter(path, TABLE, capacity=8, first_row=0)
    assert Segment(path).rows == 1


def test_a_segment_names_its_own_columns_so_that_an_older_run_stays_readable(writer: SegmentWriter, path: Path) -> None:
    assert [(column.name, column.kind) for column in Segment(path).columns] == [(c.name, c.kind) for c in TABLE.columns]
    with pytest.raises(KeyError):
        Segment(path).column("added_later")


def cut_to(size: int) -> object:
    return lambda path: path.write_bytes(path.read_bytes()[:size])


def overwrite(at: int, content: bytes) -> object:
    return lambda path: path.write_bytes(path.read_bytes()[:at] + content + path.read_bytes()[at + len(content) :])


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        pytest.param(cut_to(0), "shorter than its header", id="empty"),
        pytest.param(cut_to(100), "shorter than its header", id="cut in the header"),
        pytest.param(cut_to(HEADER_BYTES + 8), "truncated", id="cut in the columns"),
        pytest.param(overwrite(0, bytes(8)), "header is not complete", id="still being made"),
        pytest.param(overwrite(0, bytes(range(256)) * 17), "header is not complete", id="garbage"),
        pytest.param(overwrite(64, b"\xff\xfe["), "description cannot be read", id="garbage description"),
        pytest.param(overwrite(32, struct.pack("<Q", 9)), "truncated", id="more rows than fit"),
        pytest.param(overwrite(8, struct.pack("<Q", 2**62)), "truncated", id="absurd capacity"),
        pytest.param(overwrite(48, struct.pack("<Q", 2**63)), "description cannot be read", id="absurd description"),
    ],
)
def test_a_damaged_segment_is_refused_in_words(writer: SegmentWriter, path: Path, damage: object, why: str) -> None:
    writer.append((1, 0.5, 7))
    writer.seal()
    damage(path)  # type: ignore[operator]
    with pytest.raises(DamagedSegment, match=why) as refused:
        Segment(path)
    assert str(path) in refused.value.problem and refused.value.fix
