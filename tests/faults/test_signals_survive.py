"""What was recorded survives the process, and the recording survives the disk."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from holdfast.errors import DamagedSegment
from holdfast.signals import table as table_module
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import MISSING_INT, TABLES
from holdfast.signals.segment import Segment
from holdfast.signals.strings import read_strings

VICTIMS = Path(__file__).parents[1] / "victims"
COLUMNS = TABLES["steps"].column_names
ROW_BYTES = len(COLUMNS) * 8
FIRST_SEGMENT_BYTES = TABLES["steps"].first_segment_rows * ROW_BYTES


def steps_of(run: Path) -> Iterator[Segment]:
    """The readable segments of rank 0's steps, in order."""
    for path in sorted((run / "rank-0" / "steps").glob("*.seg")):
        try:
            yield Segment(path)
        except DamagedSegment:
            continue


def numbers(run: Path) -> list[int]:
    return [int(number) for segment in steps_of(run) for number in segment.column("step")]


def append(recorder: Recorder, start: int, count: int) -> None:
    for number in range(start, start + count):
        recorder.table("steps").append([number] * len(COLUMNS))


def findings(run: RunFolder) -> list[str]:
    return [entry["code"] for entry in run.journal]


def go_on_until(recorder: Recorder, start: int, condition: Callable[[], bool]) -> int:
    """Train on, a row every millisecond, until the condition holds; the number of the next row."""
    deadline = time.monotonic() + 600
    while not condition() and time.monotonic() < deadline:
        append(recorder, start, 1)
        start += 1
        time.sleep(0.001)
    assert condition()
    return start


@pytest.fixture(autouse=True)
def retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_RETRY_SECONDS", 0.1)


# --- while the writer lives ---------------------------------------------------------------------------------------------


def test_a_reader_in_another_process_never_sees_half_a_row(tmp_path: Path) -> None:
    victim = subprocess.Popen([sys.executable, VICTIMS / "steady_writer.py", tmp_path, "2"], stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None and victim.stdout.readline() == "ready\n"
    looks, seen = 0, 0
    while victim.poll() is None:
        for segment in list(steps_of(tmp_path / "run"))[-2:]:
            looks, seen = looks + 1, max(seen, segment.first_row + segment.rows if segment.rows else 0)
            for name in COLUMNS[-4:]:  # stored last
                tail = segment.column(name)[-20:]
                assert (tail == segment.first_row + segment.rows - np.arange(len(tail), 0, -1)).all(), f"half a row before {seen}"
    written = int(victim.stdout.read())
    assert victim.returncode == 0
    assert looks > 50 and 0 < seen <= written
    for name in COLUMNS:
        assert (np.concatenate([segment.column(name) for segment in steps_of(tmp_path / "run")]) == np.arange(written)).all()


# --- after the writer was killed ----------------------------------------------------------------------------------------


def test_a_kill_at_any_moment_loses_no_published_row() -> None:
    answer = subprocess.run(
        [sys.executable, VICTIMS / "killed_writer.py", "40", str(time.time_ns())], capture_output=True, text=True, check=True
    )
    counts = json.loads(answer.stdout)
    assert counts["kills"] == 40 and counts["published"] > 1000 and counts["segments"] > 40, counts
    wrong = {name: counts.get(name, 0) for name in ("lost", "half_rows", "out_of_order", "victims_that_failed")}
    assert not any(wrong.values()), counts


def test_a_row_in_which_the_process_died_is_recognised_and_left_out(tmp_path: Path) -> None:
    victim = subprocess.run([sys.executable, VICTIMS / "torn_writer.py", tmp_path], capture_output=True, text=True, check=False)
    assert victim.returncode == -9, victim.stderr
    (segment,) = (segment for segment in steps_of(tmp_path / "run") if segment.rows)
    assert segment.torn_tail and not segment.sealed
    assert numbers(tmp_path / "run") == [0, 1, 2]


def test_a_segment_cut_short_costs_only_its_own_rows(tmp_path: Path) -> None:
    recorder = Recorder.start(RunFolder.create(tmp_path, "run"), rank=0)
    append(recorder, 0, 6000)
    recorder.close()
    first, second, third = sorted((recorder.recording.path / "steps").glob("*.seg"))
    second.write_bytes(second.read_bytes()[:-1])
    assert numbers(tmp_path / "run") == [*range(Segment(first).rows), *range(Segment(third).first_row, 6000)]


def test_children_that_are_forked_do_not_disturb_the_recording(tmp_path: Path) -> None:
    victim = subprocess.run(
        [sys.executable, "-W", "error", VICTIMS / "forking_writer.py", tmp_path], capture_output=True, text=True, check=False
    )
    assert (victim.returncode, victim.stderr) == (0, "")
    assert numbers(tmp_path / "run") == list(range(3000))
    assert [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith("rank")] == ["rank-0"]
    assert not (tmp_path / "run" / "rank-0" / "groups").exists()


# --- when the disk fails ------------------------------------------------------------------------------------------------


def test_a_full_disk_stops_the_recording_and_not_the_training_and_room_brings_it_back(mount: Callable[..., Path]) -> None:
    disk = mount("size=4m")
    recorder = Recorder.start(RunFolder.create(disk, "run"), rank=0)
    append(recorder, 0, 10)
    fill(disk / "ballast")
    next_number = go_on_until(recorder, 10, lambda: recorder.dropped > 0)
    published = recorder.table("steps").rows

    tracemalloc.start()
    append(recorder, next_number, 20_000)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 1e6, f"{grown} bytes kept for a disk that is full"
    assert recorder.strings.code("a name") == MISSING_INT
    assert numbers(disk / "run") == list(range(published))

    (disk / "ballast").unlink()
    last = go_on_until(recorder, next_number + 20_000, lambda: recorder.table("steps").rows > published + 2000) - 1
    assert recorder.strings.code("a name") == 0
    recorder.close()
    read = numbers(disk / "run")
    assert read == sorted(set(read)) and read[:published] == list(range(published)) and read[-1] == last
    assert len(read) + recorder.dropped == last + 1
    assert set(findings(recorder.run)) == {"holdfast-degraded"}


def fill(ballast: Path) -> None:
    """Leave no block of the disk free."""
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))


def test_a_disk_too_small_for_the_first_segment_leaves_the_training_alone(mount: Callable[..., Path]) -> None:
    disk = mount("size=64k")
    assert FIRST_SEGMENT_BYTES > 65536
    recorder = Recorder.start(RunFolder.create(disk, "run"), rank=0)
    append(recorder, 0, 3000)
    recorder.close()
    assert recorder.dropped == 3000
    assert set(findings(recorder.run)) == {"holdfast-degraded"}
    assert not list((recorder.recording.path / "steps").glob("*.seg")), "a file that could not be reserved was left behind"


def test_a_read_only_disk_leaves_the_training_alone(mount: Callable[..., Path]) -> None:
    disk = mount("size=4m")
    recorder = Recorder.start(RunFolder.create(disk, "run"), rank=0)
    mount("remount,ro,size=4m")
    append(recorder, 0, 3000)
    assert recorder.strings.code("a name") == MISSING_INT
    assert recorder.degraded is not None and "Read-only file system" in recorder.degraded
    with pytest.raises(OSError, match="Read-only"):
        Recorder.start(recorder.run, rank=1)
    mount("remount,rw,size=4m")
    go_on_until(recorder, 3000, lambda: recorder.table("steps").rows > 0)
    recorder.close()
    assert set(findings(recorder.run)) == {"holdfast-degraded"}
    assert numbers(disk / "run")[:1000] == list(range(1000))


def test_a_folder_that_is_deleted_leaves_the_training_alone_and_is_used_again(tmp_path: Path) -> None:
    recorder = Recorder.start(RunFolder.create(tmp_path, "run"), rank=0)
    append(recorder, 0, 10)
    shutil.rmtree(recorder.run.path)
    next_number = go_on_until(recorder, 10, lambda: recorder.dropped > 0)
    assert recorder.degraded is not None and "No such file" in recorder.degraded
    recorder.recording.path.mkdir(parents=True)
    published = recorder.table("steps").rows
    go_on_until(recorder, next_number, lambda: recorder.table("steps").rows > published + 1)
    assert read_strings(recorder.recording.path) == []
    recorder.close()
    assert set(findings(recorder.run)) == {"holdfast-degraded"}
    assert len(numbers(tmp_path / "run")) > 1
