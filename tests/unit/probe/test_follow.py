from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.probe.compact import compact
from holdfast.probe.follow import Follower


def write(recorder: Any, row: Any, first: int, count: int) -> None:
    for step in range(first, first + count):
        recorder.table("steps").append(row("steps", step=step, loss=float(step)))


@pytest.mark.parametrize("at_most", [3, 4096])
@pytest.mark.parametrize("turn", [False, True])
def test_every_row_comes_once_and_in_order(tiny_segments: None, record: Any, row: Any, at_most: int, turn: bool) -> None:
    recorder = record()
    follower = Follower(recorder.recording.path, "steps", ("step", "loss"))
    assert len(follower.new_rows()["step"]) == 0
    seen: list[int] = []
    for first in range(0, 100, 10):
        write(recorder, row, first, 10)
        if turn:
            compact(recorder.recording.path)
        while len(new := follower.new_rows(at_most)["step"]):
            seen += new.tolist()
    assert seen == list(range(100))
    assert len(follower.new_rows()["step"]) == 0


def test_a_follower_that_starts_late_reads_what_is_parquet_already(tiny_segments: None, record: Any, row: Any) -> None:
    recorder = record()
    write(recorder, row, 0, 60)
    recorder.close()
    compact(recorder.recording.path, final=True)
    assert Follower(recorder.recording.path, "steps", ("step",)).new_rows()["step"].tolist() == list(range(60))


def test_another_one_reads_on_from_a_position_that_was_written_down(tiny_segments: None, record: Any, row: Any) -> None:
    """A sender that was killed is started again, and its segments are Parquet meanwhile."""
    recorder, seen, position = record(), list[int](), None
    for first in range(0, 60, 10):
        write(recorder, row, first, 10)
        follower = Follower(recorder.recording.path, "steps", ("step",))
        if position is not None:
            follower.position = json.loads(position)
        seen += follower.new_rows(7)["step"].tolist()
        position = json.dumps(follower.position)
        compact(recorder.recording.path)
    follower.position = json.loads(position or "")
    while len(new := follower.new_rows()["step"]):
        seen += new.tolist()
    assert seen == list(range(60))


def test_names_come_as_text(record: Any, row: Any) -> None:
    recorder = record()
    code = recorder.strings.code
    recorder.table("evaluations").append(row("evaluations", step=1, split=code("val"), name=code("loss"), value=0.5))
    found = Follower(recorder.recording.path, "evaluations", ("step", "split", "name", "value")).new_rows()
    assert [values.tolist() for values in found.values()] == [[1], ["val"], ["loss"], [0.5]]
