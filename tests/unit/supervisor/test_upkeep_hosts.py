"""The last pass over a run whose folder is shared: only what this machine's dead processes left open is sealed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble
from holdfast.supervisor.upkeep import Upkeep, writer_is_gone


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "a")


@pytest.fixture
def dead() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def record(run: RunFolder, rank: int, **who: Any) -> Recorder:
    recorder = Recorder.start(run, rank)
    for step in range(1100):  # two segments
        recorder.table("groups").append((step, 0, 0, 0.1, 0.0))
    (recorder.recording.path / "process.json").write_text(json.dumps(who))
    return recorder


def files(recorder: Recorder) -> set[str]:
    """What the last segment is kept as; the first was sealed by its writer."""
    return {file.suffix for file in (recorder.recording.path / "groups").glob("000001.*")}


def tidy(run: RunFolder) -> None:
    upkeep = Upkeep(run, Trouble(run.journal), hurry=threading.Event())
    upkeep.start()
    upkeep.finish()
    assert not upkeep.busy and list(run.journal) == []


def test_the_open_tables_of_another_machine_are_left_to_it(run: RunFolder, dead: int) -> None:
    there = record(run, 1, pid=dead, host="elsewhere")
    here = record(run, 0, pid=dead, host=socket.gethostname())
    tidy(run)
    assert files(here) == {".parquet"} and files(there) == {".seg"}


def test_a_process_that_lives_on_does_not_keep_the_tables_of_the_others_open(run: RunFolder, dead: int) -> None:
    ended, living = record(run, 0, pid=dead), record(run, 1, pid=os.getpid())
    tidy(run)
    assert files(ended) == {".parquet"} and files(living) == {".seg"}


def test_a_writer_that_has_not_said_who_it_is_may_be_about_to_write(run: RunFolder) -> None:
    assert not writer_is_gone(run.claim(0))
