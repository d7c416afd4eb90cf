from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble
from holdfast.supervisor import train_log


def test_a_stuck_disk_holds_nobody_up_and_memory_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, free = RunFolder.create(tmp_path, "a"), threading.Event()
    monkeypatch.setattr(train_log, "append_to", lambda *_: free.wait(10))
    log = train_log.TrainLog(run.path / "train.log", Trouble(run.journal))
    log.start()
    begun = time.monotonic()
    for _ in range(100):
        log.put(bytes(1 << 20))
    log.close(0.1)
    assert time.monotonic() - begun < 5
    assert log._parts.qsize() <= 17
    entry, *more = run.journal
    assert entry["code"] == "holdfast-degraded" and "too slow" in entry["evidence"]["error"]
    assert len(more) < 8, "at every doubling"
    free.set()


def test_trouble_that_the_journal_refuses_is_written_when_it_can_be(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "gone")
    trouble = Trouble(run.journal)
    trouble.step_back("one thing", OSError("no"))
    trouble.step_back("one thing", OSError("again"))
    run.path.mkdir()
    trouble.write_pending()
    trouble.write_pending()
    assert [entry["evidence"]["error"] for entry in run.journal] == ["OSError: no", "OSError: again"]
