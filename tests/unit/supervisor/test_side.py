from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder


def start_side(run: RunFolder, pid: int, runtime: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "holdfast.supervisor.side", str(run.path), str(pid)]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)


def test_the_side_process_lives_as_long_as_the_training_and_tidies_up(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "a")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as training:
        recorder = Recorder.start(run, 0)
        for step in range(1100):  # two segments
            recorder.table("groups").append((step, 0, 0, 0.1, 0.0))
        (recorder.recording.path / "process.json").write_text(f'{{"pid": {training.pid}}}')
        side = start_side(run, training.pid, tmp_path)
        entry = tmp_path / "holdfast" / f"{side.pid}.json"
        _wait_until(lambda: entry.exists() and (run.path / "host/processes/000000.seg").exists())
        assert os.getsid(side.pid) == side.pid
        assert os.getpriority(os.PRIO_PROCESS, side.pid) > os.getpriority(os.PRIO_PROCESS, 0)
        training.communicate(b"\n")
    assert side.communicate(timeout=600) == (b"", None)
    assert side.returncode == 0
    assert run.info()["ended"] is not None
    assert (recorder.recording.path / "groups/000000.parquet").exists()
    assert not entry.exists()


def test_a_time_of_ending_that_is_known_already_is_kept(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "a", ended=123.0)
    done = subprocess.Popen(["true"])
    done.wait()
    assert start_side(run, done.pid, tmp_path).wait(60) == 0
    assert run.info()["ended"] == 123.0


def test_a_run_that_was_closed_is_not_watched_on_though_its_process_lives(tmp_path: Path) -> None:
    """A notebook closes one run after the other, and lives for days."""
    run = RunFolder.create(tmp_path, "a", ended=None)
    side = start_side(run, os.getpid(), tmp_path)
    _wait_until(lambda: (tmp_path / "holdfast" / f"{side.pid}.json").exists())
    assert side.poll() is None
    run.update_info(ended=123.0)
    assert side.wait(600) == 0 and run.info()["ended"] == 123.0


def test_called_wrongly_it_ends_without_a_word(tmp_path: Path) -> None:
    side = start_side(RunFolder(tmp_path / "nothing"), os.getpid(), tmp_path)
    assert side.communicate(timeout=600) == (b"", None)
    assert side.returncode == 2


def _wait_until(true: object) -> None:
    deadline = time.monotonic() + 600
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)
