"""Following the processes of a run from outside: those that have just begun, have another's number, or another clock."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.signals.pulse import _LAYOUT, MAGIC, PHASES, STARTING
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import Recording, RunFolder
from holdfast.supervisor.progress import Progress


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "a")


def says_who(recording: Recording, **who: Any) -> None:
    (recording.path / "process.json").write_text(json.dumps({"pid": os.getpid(), "started": time.time(), **who}))


def pulse(path: Path, *, steps: int, beats: int, phase: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(_LAYOUT.pack(MAGIC, os.getpid(), steps, beats, PHASES.index(phase), 0.0, 0.0))


def test_a_training_that_was_seen_before_it_said_who_it_is_is_followed_afterwards(run: RunFolder) -> None:
    progress = Progress(run, 0.5)
    pulse(run.path / STARTING / str(os.getpid()), steps=0, beats=3, phase="starting")
    recording = run.claim(0)
    assert [one.phase for one in progress.look()] == ["starting"]
    says_who(recording)
    (run.path / STARTING / str(os.getpid())).unlink()
    pulse(recording.path / "pulse", steps=7, beats=20, phase="training")
    (standing,) = progress.look()
    assert (standing.phase, standing.step) == ("training", 6)


def test_half_a_file_about_the_process_is_read_again(run: RunFolder) -> None:
    progress, recording = Progress(run, 0.5), run.claim(3)
    (recording.path / "process.json").write_text('{"pid": 12')
    assert progress.look() == []
    says_who(recording)
    assert [one.rank for one in progress.look()] == [3]


def test_a_clock_that_is_set_forward_ends_nobody(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    progress, recorder = Progress(run, 0.5), Recorder.start(run, 0)
    assert len(progress.look()) == 1
    monkeypatch.setattr(psutil.Process, "create_time", lambda _self: time.time() + 3600)  # as it looks after an hour's leap
    assert len(progress.look()) == 1 and progress.pids == [os.getpid()]
    recorder.close()


def test_a_process_of_another_machine_does_not_hide_ours_of_the_same_number(run: RunFolder) -> None:
    says_who(run.claim(0), host=socket.gethostname())
    says_who(run.claim(4), host="elsewhere")
    progress = Progress(run, 0.5)
    for _ in range(2):
        assert [one.rank for one in progress.look()] == [0]


def test_a_process_that_has_ended_is_left_out(run: RunFolder) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        says_who(run.claim(0), pid=process.pid)
        progress = Progress(run, 0.5)
        assert progress.look() and progress.pids == [process.pid]
        process.kill()
    assert progress.look() == [] and progress.pids == []


def test_one_that_began_to_train_on_another_machine_is_not_mistaken_for_ours_of_the_same_number(run: RunFolder) -> None:
    progress = Progress(run, 0.5)
    pulse(run.path / STARTING / "there", steps=0, beats=3, phase="starting")
    assert len(progress.look()) == 1
    recording = run.claim(4)
    says_who(recording, host="elsewhere")
    (run.path / STARTING / "there").rename(recording.path / "pulse")
    assert progress.look() == []
    says_who(run.claim(0))
    assert [one.rank for one in progress.look()] == [0]
