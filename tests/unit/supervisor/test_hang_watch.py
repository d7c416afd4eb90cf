"""The watch for hangs goes on, and a hang is ended, although the disk is full."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.detectors.finding import Finding
from holdfast.detectors.hang import Limits
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES
from holdfast.signals.trouble import Trouble
from holdfast.supervisor.hang import Hangs
from holdfast.supervisor.hang_watch import HangWatch


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFolder]:
    """A run whose only process has made some steps and sleeps for ever."""
    monkeypatch.setenv("HOLDFAST_HANG_AFTER", "0.5")
    monkeypatch.setenv("HOLDFAST_HANG_PATIENCE", "0.5")
    run = RunFolder.create(tmp_path, "a")
    recorder = Recorder.start(run, 0)
    for step in range(10):
        given = {"step": step, "loss": 1.0, "step_seconds": 0.01}
        recorder.table("steps").append([given.get(column.name, column.kind.missing) for column in TABLES["steps"].columns])
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    path = recorder.recording.path / "process.json"
    path.write_text(json.dumps({"pid": process.pid, "host": socket.gethostname(), "started": time.time()}))
    yield run
    process.kill()
    process.wait()
    recorder.close()


def wait_until(holds: Callable[[], Any], seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert holds()


def test_a_hang_is_acted_on_although_it_cannot_be_told_and_told_when_there_is_room(hung: RunFolder) -> None:
    found: list[Finding] = []
    trouble = Trouble(hung.journal)
    hangs = Hangs(hung, trouble)
    hangs.on_hang = found.append
    hung.journal.path.mkdir()
    hangs.start()
    try:
        wait_until(lambda: found)
        time.sleep(0.3)
        hung.journal.path.rmdir()
        wait_until(lambda: sum(1 for _ in hung.journal) >= 2)
    finally:
        hangs.finish()
    trouble.write_pending()
    rows = [row for row in hung.journal if row.get("code") != "holdfast-degraded"]
    degraded = [row["evidence"]["what"] for row in hung.journal if row.get("code") == "holdfast-degraded"]
    assert [row["kind"] for row in rows] == ["finding", "diagnosis"] and len(found) == 1
    assert rows[0]["severity"] == "critical" and "writing to the journal" in degraded


def test_a_run_whose_folder_was_moved_is_not_taken_for_a_hang(hung: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    found: list[Finding] = []
    original = HangWatch.look

    def counted(watch: HangWatch) -> None:
        original(watch)
        looks.append(1)

    monkeypatch.setattr(HangWatch, "look", counted)
    hangs = Hangs(hung, Trouble(hung.journal))
    hangs.on_hang = found.append
    hangs.start()
    wait_until(lambda: looks)
    hung.path.rename(hung.path.with_name("moved"))
    before = len(looks)
    wait_until(lambda: len(looks) > before + 40 or found)  # each a tenth of a second: a hang is reported after ten
    hangs.finish()
    assert not found


def test_a_look_that_fails_on_the_disk_is_told_and_not_the_last(hung: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def fail_twice(watch: HangWatch) -> None:
        looks.append(1)
        if len(looks) < 3:
            raise OSError(116, "Stale file handle")

    monkeypatch.setattr(HangWatch, "look", fail_twice)
    hangs = Hangs(hung, Trouble(hung.journal))
    hangs.start()
    wait_until(lambda: len(looks) > 3)
    hangs.finish()
    entry, *_ = hung.journal
    assert entry["code"] == "holdfast-degraded" and "Stale file handle" in entry["evidence"]["error"]


def test_a_wait_that_was_taken_for_a_hang_gets_longer_in_the_next_attempt(hung: RunFolder) -> None:
    found: list[Finding] = []
    watch = HangWatch(hung, Trouble(hung.journal), limits=Limits(floor=0.5, patient=0.5), on_hang=found.append)
    watch.begin_again()
    assert watch._limits.floor == 0.5, "nothing was taken for a hang"
    wait_until(lambda: watch.look() or found)  # type: ignore[func-returns-value]
    watch.begin_again()
    assert watch._limits.floor == 1.5 and watch._limits.patience == 0.5 and watch._limits.disk == 30.0
