from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from made_stacks import in_all_reduce, reading, worker

from holdfast.probe.sql import query
from holdfast.probe.stacks.frames import Frame, ProcessStacks, as_rows, from_rows
from holdfast.probe.stacks.keep import keep_stacks, kept_stacks, kept_times
from holdfast.signals.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", "run", ended=1.0)


GONE = ProcessStacks(1002, "rank 2", 2, problem="the process has ended", by="nobody", state="gone")
STACKS = [in_all_reduce(0), reading(1), GONE, worker(1, Frame("read", "/job/data.py", 6))]


def test_what_was_kept_comes_back_as_it_was(run: RunFolder) -> None:
    keep_stacks(run, STACKS, when=1000.5)
    found = kept_stacks(run)
    assert found is not None and found[0] == 1000.5
    assert [one.threads for one in found[1]] == [one.threads for one in STACKS]
    assert [(one.pid, one.role, one.rank, one.state, one.problem, one.worker) for one in found[1]] == [
        (one.pid, one.role, one.rank, one.state, one.problem, one.worker) for one in STACKS
    ]


def test_rows_for_the_wire_come_back_as_they_were() -> None:
    assert from_rows(as_rows(STACKS)) == STACKS


def test_the_newest_before_a_moment_is_found(run: RunFolder) -> None:
    assert kept_stacks(run) is None and kept_times(run) == []
    for when in (1000.0, 2000.0, 3000.0):
        keep_stacks(run, STACKS[:1], when=when)
    assert kept_times(run) == [1000.0, 2000.0, 3000.0]
    earlier = kept_stacks(run, before=3000.0)
    assert earlier is not None and earlier[0] == 2000.0


def test_the_training_thread_of_the_lowest_rank_is_python_backtrace(run: RunFolder) -> None:
    keep_stacks(run, [reading(1)], when=1000.0)
    keep_stacks(run, [worker(0), reading(1), in_all_reduce(0)], when=2000.0)
    rows = query(run, "SELECT func, file, lineno, depth FROM python.backtrace ORDER BY depth LIMIT 10").rows
    assert [(row[0], row[2], row[3]) for row in rows] == [("all_reduce", 3252, 0), ("average", 26, 1), ("<module>", 40, 2)]
    assert query(run, "SELECT DISTINCT rank FROM stacks WHERE time = 1000 AND call = 'read /job/settings'").rows == [(1,)]


def test_native_frames_are_in_stacks_and_not_in_python_backtrace(run: RunFolder) -> None:
    one = in_all_reduce(0)
    native = Frame("c10d::Work::wait", "libtorch_cpu.so", 0, "libtorch_cpu.so", native=True)
    thread = one.threads[0]
    keep_stacks(run, [replace(one, threads=(replace(thread, frames=(native, *thread.frames)),))], when=1.0)
    assert query(run, "SELECT MIN(depth) FROM stacks WHERE native = 0").rows == [(1,)]
    assert query(run, "SELECT func FROM python.backtrace WHERE depth = 0").rows == [("all_reduce",)]


def test_a_run_without_stacks_says_why_the_table_is_empty(run: RunFolder) -> None:
    answer = query(run, "SELECT * FROM python.backtrace")
    assert answer.rows == [] and any("stacks is empty" in note for note in answer.notes)


def test_two_who_keep_at_once_lose_nothing(run: RunFolder) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda n: keep_stacks(run, STACKS[:1], when=float(n)), range(20)))
    assert len(set(paths)) == 20 and len(kept_times(run)) == 20
