from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from every_case import every_case

from holdfast.signals import recorder as recorder_module
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES
from holdfast.signals.segment import Segment

GROUP_ROW = (1, 0, 0, 0.1, 0.0)


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder.start(RunFolder.create(tmp_path, "run"), rank=3)
    yield made
    made.close()


def wait_for(condition: object, seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:  # type: ignore[operator]
        time.sleep(0.01)
    assert condition()  # type: ignore[operator]


def rows(recorder: Recorder, table: str) -> int:
    return sum(Segment(path).rows for path in (recorder.recording.path / table).glob("*.seg"))


def test_a_recording_says_which_process_writes_it(recorder: Recorder) -> None:
    assert recorder.recording.name == "rank-3"
    assert recorder.recording.info()["pid"] == os.getpid()


def test_tables_that_get_no_row_leave_no_file(recorder: Recorder) -> None:
    recorder.table("groups").append(GROUP_ROW)
    recorder.close()
    assert sorted(path.name for path in recorder.recording.path.iterdir()) == ["groups", "process.json"]


@every_case("name", TABLES)
def test_every_table_takes_a_row_in_which_nothing_was_measured(recorder: Recorder, name: str) -> None:
    recorder.table(name).append([column.kind.missing for column in TABLES[name].columns])
    assert rows(recorder, name) == 1


def test_every_failure_is_recorded_and_a_thousand_of_them_do_not_fill_the_journal(recorder: Recorder) -> None:
    for number in range(1000):
        recorder.step_back("sampling", OSError(f"no room {number}"))
    recorder.step_back("before_update: off from now on", ValueError("the guard"))
    first, *later, last = recorder.run.journal
    assert (first["code"], first["severity"], first["rank"]) == ("holdfast-degraded", "warning", 3)
    assert first["evidence"] == {"what": "sampling", "error": "OSError: no room 0"}
    assert [row["evidence"]["so_far"] for row in later] == [2**power for power in range(1, 10)]
    assert last["evidence"]["what"].startswith("before_update"), "the first failure does not hide that the guard is off"
    assert recorder.degraded == "sampling: no room 0"


def test_failures_in_many_threads_at_once_are_counted(recorder: Recorder) -> None:
    start = threading.Barrier(8)

    def fail() -> None:
        start.wait()
        recorder.step_back("thing", OSError())

    threads = [threading.Thread(target=fail) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row["evidence"].get("so_far", 1) for row in recorder.run.journal] == [1, 2, 4, 8]


def test_trouble_that_could_not_be_written_down_is_written_later(recorder: Recorder) -> None:
    recorder.run.journal.path.mkdir()
    recorder.step_back("thing", OSError())
    recorder.run.journal.path.rmdir()
    recorder.close()
    assert len(list(recorder.run.journal)) == 1


def test_a_failing_side_job_does_not_stop_the_others(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = threading.Event()
    recorder.every_second(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    recorder.every_second(ran.set)
    assert ran.wait(600)
    assert recorder.degraded == "sampling in the background: division by zero"
    recorder.table("groups").append(GROUP_ROW)
    assert rows(recorder, "groups") == 1


def test_a_file_that_fails_in_an_unforeseen_way_does_not_stop_the_helper_thread(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("holdfast.signals.table.segment_path", lambda *_: 1 / 0)
        recorder.table("groups").append(GROUP_ROW)
        wait_for(lambda: recorder.degraded == "making a file: division by zero")
    recorder.table("steps").append([column.kind.missing for column in TABLES["steps"].columns])
    assert rows(recorder, "steps") == 1


def test_closing_twice_and_recording_after_it_do_no_harm(recorder: Recorder) -> None:
    recorder.table("groups").append(GROUP_ROW)
    recorder.close()
    recorder.close()
    recorder.table("groups").append(GROUP_ROW)
    recorder.table("steps").append([column.kind.missing for column in TABLES["steps"].columns])
    assert (rows(recorder, "groups"), rows(recorder, "steps"), recorder.dropped) == (1, 0, 2)


def test_closing_ends_the_helper_thread(recorder: Recorder) -> None:
    assert recorder._thread.is_alive()
    recorder.close()
    assert not recorder._thread.is_alive()


def test_a_recorder_that_is_gone_does_not_stay_in_memory_for_forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = []
    monkeypatch.setattr(recorder_module.os, "register_at_fork", lambda **hook: hooks.append(hook["after_in_child"]))
    made = Recorder.start(RunFolder.create(tmp_path, "run"), rank=0)
    made.close()
    del made
    gc.collect()
    (hook,) = hooks
    hook()
    assert hook.__closure__[0].cell_contents() is None
