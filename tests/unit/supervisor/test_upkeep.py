from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.probe import compact
from holdfast.probe.rows import last_rows
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble
from holdfast.supervisor import upkeep

TWO_SEGMENTS = 1100  # rows


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "a")


def test_what_a_dead_training_left_open_is_tidied_up_at_the_end(run: RunFolder) -> None:
    recorder = Recorder.start(run, 0)
    for step in range(TWO_SEGMENTS):
        recorder.table("groups").append((step, 0, 0, 0.1, 0.0))
    process = recorder.recording.path / "process.json"
    process.write_text(f'{{"pid": {_dead_pid()}}}')
    one = upkeep.Upkeep(run, Trouble(run.journal), hurry=threading.Event())
    one.start()
    one.finish()
    assert {file.name for file in (recorder.recording.path / "groups").iterdir()} == {"000000.parquet", "000001.parquet"}


def test_tables_of_one_segment_stay_as_they_are(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(compact, "compact_run")
    recorder = Recorder.start(run, 0)
    recorder.table("groups").append((0, 0, 0, 0.1, 0.0))
    recorder.close()
    (recorder.recording.path / "process.json").write_text(f'{{"pid": {_dead_pid()}}}')
    one = upkeep.Upkeep(run, Trouble(run.journal), hurry=threading.Event())
    one.start()
    one.finish()
    assert list(run.journal) == [] and len(last_rows(recorder.recording.path, "groups", ("lr",), 9)["lr"]) == 1


def test_a_training_that_lives_on_keeps_its_open_tables(run: RunFolder) -> None:
    recorder = Recorder.start(run, 0)
    for step in range(TWO_SEGMENTS):
        recorder.table("groups").append((step, 0, 0, 0.1, 0.0))
    assert not upkeep.writer_is_gone(recorder.recording)
    one = upkeep.Upkeep(run, Trouble(run.journal), hurry=threading.Event())
    one.start()
    one.finish()
    assert (recorder.recording.path / "groups/000001.seg").exists()
    recorder.close()


def test_the_last_pass_takes_no_longer_than_its_limit(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert upkeep._LAST_PASS_SECONDS <= 5
    monkeypatch.setattr(upkeep, "_LAST_PASS_SECONDS", 0.3)
    assert _seconds_of_a_stuck_pass(run, monkeypatch, threading.Event()) < 2


def test_an_impatient_user_is_not_kept_waiting(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry = threading.Event()
    hurry.set()
    assert _seconds_of_a_stuck_pass(run, monkeypatch, hurry) < 2


def test_a_compaction_that_fails_is_recorded_and_ends_nothing(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no parquet today")

    monkeypatch.setattr(compact, "compact_run", fail)
    monkeypatch.setattr(upkeep, "_EVERY_SECONDS", 0.01)
    _second_segment(run)
    one = upkeep.Upkeep(run, Trouble(run.journal), hurry=threading.Event())
    one.start()
    time.sleep(0.2)
    one.finish()
    entry, *_ = run.journal
    assert entry["code"] == "holdfast-degraded" and "no parquet today" in entry["evidence"]["error"]


def test_a_run_without_a_training_is_not_touched(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(compact, "compact_run")
    one = upkeep.Upkeep(run, Trouble(run.journal), hurry=threading.Event())
    one.start()
    one.finish()
    assert list(run.journal) == []


def _second_segment(run: RunFolder) -> None:
    steps = run.claim(0).path / "steps"
    steps.mkdir()
    (steps / "000001.seg").touch()


def _dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def _seconds_of_a_stuck_pass(run: RunFolder, monkeypatch: pytest.MonkeyPatch, hurry: threading.Event) -> float:
    free = threading.Event()
    monkeypatch.setattr(compact, "compact_run", lambda *_, **__: free.wait(10))
    _second_segment(run)
    one = upkeep.Upkeep(run, Trouble(run.journal), hurry=hurry)
    one.start()
    begun = time.monotonic()
    one.finish()
    free.set()
    assert os.getpid()
    return time.monotonic() - begun
