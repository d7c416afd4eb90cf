"""`process.json`: who writes a recording. It is there as a whole or not at all."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.start_ticks import start_ticks


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "run")


def before_each_move(monkeypatch: pytest.MonkeyPatch, look: Callable[[Path], None]) -> None:
    real = Path.replace

    def move(self: Path, target: Path) -> Path:
        look(Path(target))
        return real(self, target)

    monkeypatch.setattr(Path, "replace", move)


def test_a_reader_never_sees_half_of_it(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []
    before_each_move(monkeypatch, lambda target: seen.append((target.name, target.exists())))
    recorder = Recorder.start(run, 0)
    recorder.close()
    assert seen == [("process.json", False)]
    assert [entry.name for entry in recorder.recording.path.iterdir()] == ["process.json"]


def test_it_says_when_the_process_began_in_the_kernels_count(run: RunFolder) -> None:
    recorder = Recorder.start(run, 0)
    recorder.close()
    assert recorder.recording.info()["start_ticks"] == start_ticks(os.getpid())


def test_words_that_are_no_text_come_back_as_they_were(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be needed to start the process again."""
    monkeypatch.setattr(sys, "orig_argv", ["python", "caf\udce9.py"])
    recorder = Recorder.start(run, 0)
    recorder.close()
    assert recorder.recording.info()["argv"] == ["python", "caf\udce9.py"]


def test_two_machines_whose_processes_have_one_number_do_not_take_each_others_file(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(_target: Path) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
        run.write_info({"by": "the other"})

    before_each_move(monkeypatch, meanwhile)
    run.write_info({"by": "this one"})
    assert json.loads((run.path / "run.json").read_text()) == {"by": "this one"}
