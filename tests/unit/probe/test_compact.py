from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from one_table import read_table

from holdfast.probe import compact as compact_module
from holdfast.probe.compact import compact, compact_run
from holdfast.signals.recorder import Recorder
from holdfast.signals.segment import segment_path

pytestmark = pytest.mark.usefixtures("tiny_segments")


def steps_of(recorder: Recorder) -> list[int]:
    loaded = read_table(recorder.recording.path, "steps", ["step"])
    assert loaded.warnings == []
    return loaded.table.column("step").to_pylist()


def files(recorder: Recorder) -> list[str]:
    return sorted(path.name for path in (recorder.recording.path / "steps").iterdir())


@pytest.fixture
def recorder(record: Any, row: Any) -> Recorder:
    """100 steps: segments of 8, 32, 32 rows are sealed, the next is not, and one more may be ready."""
    made = record()
    for step in range(100):
        made.table("steps").append(row("steps", step=step, loss=step / 7))
    return made


def test_sealed_segments_become_parquet_and_the_open_one_stays(recorder: Recorder) -> None:
    done = compact(recorder.recording.path)
    assert (done.segments, done.rows, done.warnings) == (3, 72, [])
    assert files(recorder)[:4] == ["000000.parquet", "000001.parquet", "000002.parquet", "000003.seg"]
    assert steps_of(recorder) == list(range(100))


def test_a_living_writer_can_go_on_after_compaction(recorder: Recorder, row: Any) -> None:
    compact(recorder.recording.path)
    for step in range(100, 300):
        recorder.table("steps").append(row("steps", step=step))
    compact(recorder.recording.path)
    assert steps_of(recorder) == list(range(300))


def test_final_takes_what_a_killed_writer_left(tmp_path: Path) -> None:
    writer = (
        "import sys, time; from pathlib import Path; from holdfast.signals.recorder import Recorder\n"
        "from holdfast.signals.run_folder import RunFolder\n"
        "steps = Recorder.start(RunFolder.create(Path(sys.argv[1]), 'run'), 0).table('steps')\n"
        "for step in range(1500): steps.append([step] * 22)\n"
        "time.sleep(0.2); print('ready', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", writer, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    folder = tmp_path / "run" / "rank-0"
    compact(folder, final=True)
    assert sorted(path.suffix for path in (folder / "steps").iterdir()) == [".parquet", ".parquet"]  # the spare is gone
    assert read_table(folder, "steps", ["step"]).table.column("step").to_pylist() == list(range(1500))


def test_what_is_seen_from_outside_is_left_to_its_own_writer(recorder: Recorder, row: Any) -> None:
    host = recorder.run.path / "host"
    host.mkdir()
    (recorder.recording.path / "steps").rename(host / "processes")
    compact_run(recorder.run, final=True)
    assert segment_path(host / "processes", 3).exists()


def test_parquet_is_zstd_and_holds_names_as_text(record: Any, row: Any) -> None:
    recorder = record()
    for step in range(10):
        recorder.table("parameters").append(row("parameters", step=step, name=recorder.strings.code(f"layer{step % 2}")))
    compact(recorder.recording.path)
    file = pq.ParquetFile(recorder.recording.path / "parameters" / "000000.parquet")
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert file.read(["name"]).column("name").to_pylist() == ["layer0", "layer1"] * 4


def test_death_between_renaming_and_removing_doubles_no_row(recorder: Recorder) -> None:
    segment = segment_path(recorder.recording.path / "steps", 1)
    kept = segment.read_bytes()
    compact(recorder.recording.path)
    segment.write_bytes(kept)
    assert steps_of(recorder) == list(range(100))
    compact(recorder.recording.path)
    assert not segment.exists() and steps_of(recorder) == list(range(100))


def test_death_while_writing_leaves_the_segment_and_the_rest_is_swept(recorder: Recorder) -> None:
    folder = recorder.recording.path / "steps"
    left = folder / ".000000.parquet.4194399-7"  # a process id that cannot exist
    left.write_bytes(b"PAR1 half of it")
    assert steps_of(recorder) == list(range(100))
    compact(recorder.recording.path)
    assert not left.exists() and steps_of(recorder) == list(range(100))


@pytest.mark.parametrize("moment", range(12))
def test_killed_at_any_moment_nothing_is_lost_or_doubled(recorder: Recorder, moment: int) -> None:
    """Kill a compactor a bit later each time, then read, then let another one finish."""
    child = os.fork()
    if child == 0:
        try:
            compact(recorder.recording.path)
        finally:
            os._exit(0)
    time.sleep(moment * 0.0015)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert steps_of(recorder) == list(range(100))
    compact(recorder.recording.path)
    assert steps_of(recorder) == list(range(100))
    assert files(recorder)[:3] == ["000000.parquet", "000001.parquet", "000002.parquet"]


def test_a_full_disk_leaves_the_segments_alone(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.read_bytes() for path in sorted((recorder.recording.path / "steps").iterdir())[:4]}

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(compact_module.pq, "write_table", full)
    done = compact(recorder.recording.path)
    assert done.segments == 0 and "No space left" in done.warnings[0]
    assert {path: path.read_bytes() for path in before} == before and steps_of(recorder) == list(range(100))


def test_a_damaged_segment_is_kept_for_a_person_to_look_at(recorder: Recorder) -> None:
    victim = segment_path(recorder.recording.path / "steps", 0)
    with victim.open("r+b") as file:
        file.truncate(5000)
    done = compact(recorder.recording.path, final=True)
    assert victim.exists() and len(done.warnings) == 1


def test_two_compactors_at_once_do_no_harm(recorder: Recorder) -> None:
    threads = [threading.Thread(target=compact, args=(recorder.recording.path,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert steps_of(recorder) == list(range(100))
